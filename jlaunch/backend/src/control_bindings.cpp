/**
 * `_control`: the control block as the agent sees it. No MLX, and little else:
 * an agent imports it at its start. The typed face is _control.pyi.
 */
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "block_ops.h"
#include "mapping.h"
#include "platform.h"
#include "robust_life.h"
#include "watch.h"

namespace nb = nanobind;
using namespace jlaunch;

namespace {

/** A span of Python seconds, `inf` for ever, as the block holds it. */
std::uint64_t to_ns(double seconds, const char* name) {
  if (std::isnan(seconds) || seconds < 0) {
    throw std::invalid_argument(
        std::string(name) + " is " + std::to_string(seconds) +
        ", expected seconds >= 0");
  }
  constexpr double longest = 9e9; // seconds: 285 years are for ever
  return seconds >= longest ? std::numeric_limits<std::uint64_t>::max()
                            : static_cast<std::uint64_t>(seconds * 1e9);
}

/** A mapping that Python may close before it drops the object. */
template <class Mapping>
class Handle {
 public:
  explicit Handle(std::shared_ptr<Mapping> mapping)
      : mapping_(std::move(mapping)) {}

  const std::shared_ptr<Mapping>& get() const {
    if (!mapping_) {
      throw std::invalid_argument("the block is closed");
    }
    return mapping_;
  }

  auto& block() const {
    return get()->block();
  }

  void close() {
    mapping_.reset();
  }

 private:
  std::shared_ptr<Mapping> mapping_;
};

using PyRankBlock = Handle<RankMapping>;
using PyHostBlock = Handle<HostMapping>;

/** The two named tuples of _control.pyi; the module owns them. */
struct ViewTypes {
  nb::handle wait;
  nb::handle rank;
};

nb::handle add_named_tuple(
    nb::module_& module,
    const nb::object& named_tuple,
    const char* name,
    const char* fields) {
  nb::object made =
      named_tuple(name, fields, nb::arg("module") = module.attr("__name__"));
  module.attr(name) = made;
  return made;
}

template <class Items>
nb::object tuple_of(const Items& items) {
  nb::list list;
  for (const auto& item : items) {
    list.append(item);
  }
  return nb::tuple(list);
}

nb::object to_python(const RankSnapshot& rank, const ViewTypes& types) {
  nb::list waits;
  for (const WaitSnapshot& wait : rank.waits) {
    waits.append(types.wait(
        wait.slot,
        wait.group,
        static_cast<std::uint32_t>(wait.collective),
        wait.seq,
        wait.bytes,
        wait.since_ns,
        wait.progress_ns,
        tuple_of(wait.waiting_for)));
  }
  nb::object desync = nb::none();
  if (rank.desync) {
    desync = nb::make_tuple(
        rank.desync->peer,
        rank.desync->here,
        rank.desync->there,
        rank.desync->seq_here,
        rank.desync->seq_there);
  }
  return types.rank(
      rank.owner_pid,
      rank.owner_alive,
      rank.phase,
      rank.epoch,
      rank.progress,
      rank.reports,
      rank.question,
      rank.question_slot,
      rank.in_wait,
      rank.completed_seq,
      desync,
      nb::tuple(waits),
      rank.stack_signal,
      rank.torn);
}

/** rank, reason, completed_seq, clean: as _control.pyi has it. */
using LossTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, bool>;

void write_verdict_from_python(
    const PyRankBlock& block,
    std::uint32_t verdict,
    std::uint32_t kind,
    const std::vector<LossTuple>& losses,
    std::uint32_t answered) {
  std::vector<LossEntry> entries;
  entries.reserve(losses.size());
  for (const auto& [rank, reason, completed_seq, clean] : losses) {
    // A number that does not fit must not come out as another reason.
    const auto known = reason <= 0xff ? static_cast<Reason>(reason) : Reason{};
    entries.push_back({rank, known, completed_seq, clean});
  }
  write_verdict(
      block.block(),
      verdict,
      static_cast<VerdictKind>(kind),
      entries,
      answered);
}

void bind_blocks(nb::module_& module, ViewTypes types) {
  nb::class_<PyRankBlock>(module, "RankBlock")
      .def_static(
          "create",
          [](const std::string& path, std::uint32_t rank, std::uint32_t epoch) {
            return PyRankBlock(RankMapping::create(path, rank, epoch));
          },
          nb::arg("path"),
          nb::arg("rank"),
          nb::arg("epoch"))
      .def_static(
          "open",
          [](const std::string& path) {
            return PyRankBlock(RankMapping::open(path));
          },
          nb::arg("path"))
      .def(
          "read",
          [types](const PyRankBlock& self) {
            return to_python(read_rank(self.block()), types);
          })
      .def(
          "write_verdict",
          &write_verdict_from_python,
          nb::arg("verdict"),
          nb::arg("kind"),
          nb::arg("losses"),
          nb::arg("answered") = 0)
      .def("close", &PyRankBlock::close);

  nb::class_<PyHostBlock>(module, "HostBlock")
      .def_static(
          "create",
          [](const std::string& path, double lease_s, double grace_s) {
            return PyHostBlock(
                HostMapping::create(
                    path,
                    to_ns(lease_s, "lease_s"),
                    to_ns(grace_s, "grace_s")));
          },
          nb::arg("path"),
          nb::arg("lease_s"),
          nb::arg("grace_s"))
      .def_static(
          "open",
          [](const std::string& path) {
            return PyHostBlock(HostMapping::open(path));
          },
          nb::arg("path"))
      .def(
          "beat",
          [](const PyHostBlock& self) {
            self.block().agent_beat_ns = monotonic_ns();
          })
      .def_prop_ro(
          "agent_pid",
          [](const PyHostBlock& self) { return self.block().agent_pid.load(); })
      .def_prop_ro(
          "agent_alive",
          [](const PyHostBlock& self) {
            return life_of(self.block().agent_life.load()) == Life::held;
          })
      .def("close", &PyHostBlock::close);
}

void bind_watch(nb::module_& module) {
  nb::class_<Watch>(module, "Watch")
      .def(
          "__init__",
          [](Watch* self, const PyHostBlock& host) {
            new (self) Watch(host.get());
          },
          nb::arg("host"))
      .def("fileno", &Watch::fd)
      .def(
          "add",
          [](Watch& self, std::int64_t key, const PyRankBlock& block) {
            self.add(key, block.get());
          },
          nb::arg("key"),
          nb::arg("block"))
      .def(
          "remove",
          &Watch::remove,
          nb::arg("key"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "take",
          [](Watch& self) {
            Watch::News news = self.take();
            return std::make_tuple(std::move(news.died), news.rang);
          })
      .def("close", &Watch::close, nb::call_guard<nb::gil_scoped_release>());
}

/** OSError with its number, so that Python sees FileExistsError and friends. */
void translate_system_error(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    const nb::object value = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, value.ptr());
  }
}

} // namespace

NB_MODULE(_control, module) {
  module.doc() = "The control block, seen from the agent (no MLX inside).";
  nb::register_exception_translator(translate_system_error);

  const nb::object named_tuple =
      nb::module_::import_("collections").attr("namedtuple");
  ViewTypes types;
  types.wait = add_named_tuple(
      module,
      named_tuple,
      "WaitView",
      "slot group collective seq bytes since_ns progress_ns waiting_for");
  types.rank = add_named_tuple(
      module,
      named_tuple,
      "RankView",
      "owner_pid owner_alive phase epoch progress reports question "
      "question_slot in_wait completed_seq desync waits stack_signal torn");
  bind_blocks(module, types);
  bind_watch(module);
  module.def("monotonic_ns", &monotonic_ns);
}
