#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mlx/distributed/distributed.h>
#include <mlx/version.h>

#include "channels.h"
#include "membership.h"
#include "mlx_group.h"
#include "stack_mark.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jlaunch {

namespace {

std::vector<std::byte> to_bytes(const nb::bytes& bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

nb::bytes address(const Membership& self) {
  const auto bytes = self.address();
  return nb::bytes(bytes.data(), bytes.size());
}

void connect(Membership& self, const nb::sequence& addresses) {
  std::vector<std::vector<std::byte>> of_ranks;
  for (nb::handle one : addresses) {
    of_ranks.push_back(to_bytes(nb::cast<nb::bytes>(one)));
  }
  nb::gil_scoped_release no_gil;
  self.connect(of_ranks);
}

mx::distributed::Group group(const Membership& self) {
  return mx::distributed::Group(
      std::make_shared<MlxGroup>(self.cell(), delivery(), &on_main_thread));
}

nb::object failure(const Membership& self) {
  const auto found = self.failure();
  return found ? exception_from(found) : nb::none();
}

/** Two builds of nanobind, or of MLX, that cannot see each other's types. */
void require_same_mlx() {
  const std::string built = std::to_string(MLX_VERSION_MAJOR) + "." +
      std::to_string(MLX_VERSION_MINOR) + "." +
      std::to_string(MLX_VERSION_PATCH);
  if (built != mx::version()) {
    throw nb::import_error(("jlaunch was built against mlx " + built +
                            " but found the library of "
                            "mlx " +
                            mx::version())
                               .c_str());
  }
  nb::module_::import_("mlx.core");
  if (!nb::type<mx::distributed::Group>().is_valid()) {
    throw nb::import_error(
        "jlaunch and mlx were built with different versions of nanobind: "
        "install mlx and jlaunch from the same source again");
  }
}

} // namespace

NB_MODULE(_ext, m) {
  require_same_mlx();
  install_channels();

  nb::class_<Membership>(m, "Membership")
      .def(
          nb::init<std::string, std::string>(),
          "rank_block"_a,
          "host_block"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "open",
          [](Membership& self,
             int rank,
             int size,
             std::uint32_t epoch,
             std::string provider,
             std::vector<std::vector<std::string>> devices,
             bool ring,
             double deadline_s) {
            GroupConfig config;
            config.rank = rank;
            config.size = size;
            config.epoch = epoch;
            config.provider = std::move(provider);
            config.devices = std::move(devices);
            config.ring = ring;
            config.deadline = Membership::duration(deadline_s);
            self.open(std::move(config));
          },
          nb::kw_only(),
          "rank"_a,
          "size"_a,
          "epoch"_a,
          "provider"_a,
          "devices"_a,
          "ring"_a,
          "deadline_s"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def("address", &address)
      .def("connect", &connect, "addresses"_a)
      .def("formed", &Membership::formed)
      .def("group", &group)
      .def("failure", &failure)
      .def("report", &Membership::report)
      .def("arm_stack", &Membership::arm_stack, "signal"_a)
      .def(
          "leave",
          &Membership::leave,
          nb::call_guard<nb::gil_scoped_release>());

  m.def("mark_end_of_stack", &mark_end_of_stack, "signal"_a, "fd"_a);
  m.def("claim_stop", &claim_stop);
  m.def("close_channels", &close_channels);
}

} // namespace jlaunch
