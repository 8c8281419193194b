// The soft provider through its C face, as any verbs program would use it.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "connection.h"
#include "layout.h"
#include "mapping.h"
#include "platform.h"
#include "support.h"
#include "verbs.h"

using namespace jlaunch;
using namespace jlaunch::test;

namespace {

constexpr std::size_t kPage = 65536; // a multiple of every page size

/** Whole pages, to be registered. */
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes), arena_(make(bytes)) {}
  ~Pages() {
    munmap(arena_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::span<std::byte> span() const {
    return {arena_, bytes_};
  }
  std::byte* data() const {
    return arena_;
  }

 private:
  static std::byte* make(std::size_t bytes) {
    void* pages = mmap(
        nullptr,
        bytes,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0);
    if (pages == MAP_FAILED) {
      throw std::system_error(errno, std::generic_category(), "mmap");
    }
    return static_cast<std::byte*>(pages);
  }
  std::size_t bytes_;
  std::byte* arena_;
};

/** A directory for the provider, in the environment while it lives. */
struct SoftDir {
  SoftDir() {
    setenv("JLAUNCH_SOFT_DIR", dir.path().c_str(), 1);
  }
  ~SoftDir() {
    unsetenv("JLAUNCH_SOFT_DIR");
  }
  TempDir dir;
};

/** One side: memory, a device, a queue pair. */
struct Side {
  explicit Side(std::uint32_t depth = 4, std::span<std::byte> arena = {})
      : pages(4 * kPage),
        device(load_verbs(soft_library()), config(arena)),
        connection(device, 0, depth) {}

  Device::Config config(std::span<std::byte> arena) const {
    Device::Config config;
    config.arena = arena.empty() ? pages.span() : arena;
    return config;
  }
  int receive(std::size_t offset, std::uint32_t bytes, std::uint32_t frame) {
    return connection.post_recv(
        pages.data() + offset, bytes, {WorkId::Kind::recv, 0, frame});
  }
  int send(const std::byte* at, std::uint32_t bytes, std::uint32_t frame) {
    return connection.post_send(at, bytes, {WorkId::Kind::send, 0, frame});
  }
  std::vector<abi::ibv_wc> poll() const {
    std::array<abi::ibv_wc, 16> batch;
    const int count = device.poll(batch);
    return {batch.begin(), batch.begin() + count};
  }

  Pages pages;
  Device device;
  Connection connection;
};

void connect(Side& a, Side& b) {
  a.connection.connect(b.connection.address());
  b.connection.connect(a.connection.address());
}

void fill(std::span<std::byte> bytes, int value) {
  std::ranges::fill(bytes, static_cast<std::byte>(value));
}

std::string detail_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const VerbsError& e) {
    return e.failure().detail;
  }
  return "";
}

/** Sets a variable of the environment while it lives. */
struct Setting {
  Setting(const char* variable, const char* value) : name(variable) {
    setenv(name, value, 1);
  }
  ~Setting() {
    unsetenv(name);
  }
  const char* name;
};

} // namespace

TEST_CASE(
    "soft: a message waits until a buffer is posted, and keeps its order") {
  const SoftDir dir;
  Side a;
  Side b;
  connect(a, b);
  for (std::uint32_t i = 0; i < 3; ++i) {
    fill(a.pages.span().subspan(i * 100, 100), static_cast<int>(i + 1));
    CHECK(a.send(a.pages.data() + i * 100, 100, i) == 0);
  }
  CHECK(b.poll().empty());
  CHECK(a.poll().empty()); // not received: not completed
  CHECK(b.receive(0, 100, 7) == 0);
  CHECK(b.receive(100, 200, 8) == 0);
  const auto got = b.poll();
  REQUIRE(got.size() == 2);
  CHECK(got[0].status == abi::IBV_WC_SUCCESS);
  CHECK(got[0].opcode == abi::IBV_WC_RECV);
  CHECK(WorkId::unpack(got[0].wr_id).frame == 7);
  CHECK(got[0].byte_len == 100);
  CHECK(b.pages.data()[0] == std::byte{1});
  CHECK(b.pages.data()[100] == std::byte{2});
  CHECK(b.pages.data()[200] == std::byte{0});
  const auto sent = a.poll();
  REQUIRE(sent.size() == 2);
  CHECK(WorkId::unpack(sent[1].wr_id).frame == 1);
  CHECK(sent[1].opcode == abi::IBV_WC_SEND);
}

TEST_CASE("soft: memory that is not whole pages goes through a shadow") {
  const SoftDir dir;
  std::vector<std::byte> odd(3001);
  const auto arena = std::span(odd).subspan(1);
  Side a(4, arena);
  Side b;
  connect(a, b);
  fill(arena, 9);
  REQUIRE(b.receive(0, kPage, 0) == 0);
  REQUIRE(a.send(arena.data() + 10, 2000, 0) == 0);
  const auto got = b.poll();
  REQUIRE(got.size() == 1);
  CHECK(got[0].byte_len == 2000);
  CHECK(b.pages.data()[1999] == std::byte{9});
  CHECK(b.pages.data()[2000] == std::byte{0});
}

TEST_CASE("soft: registering keeps the content, and so does the end of it") {
  const SoftDir dir;
  const Pages pages(kPage);
  fill(pages.span(), 3);
  {
    Side a(4, pages.span());
    CHECK(pages.data()[100] == std::byte{3});
    pages.data()[100] = std::byte{4};
    // The same memory for a second device: one file page cannot be two.
    Side again(4, pages.span());
    Side b;
    connect(again, b);
    REQUIRE(b.receive(0, 1000, 0) == 0);
    REQUIRE(again.send(pages.data() + 100, 1, 0) == 0);
    REQUIRE(b.poll().size() == 1);
    CHECK(b.pages.data()[0] == std::byte{4});
  }
  CHECK(pages.data()[100] == std::byte{4});
  CHECK(pages.data()[101] == std::byte{3});
}

TEST_CASE("soft: what a sender posted may be received after it has gone") {
  const SoftDir dir;
  Side b;
  {
    Side a;
    connect(a, b);
    fill(a.pages.span(), 5);
    REQUIRE(a.send(a.pages.data(), 1000, 0) == 0);
  }
  REQUIRE(b.receive(0, 1000, 0) == 0);
  REQUIRE(b.poll().size() == 1);
  CHECK(b.pages.data()[999] == std::byte{5});
  CHECK(b.receive(0, 1000, 0) == 0);
  CHECK(b.poll().empty()); // and then there is silence
  CHECK(b.send(b.pages.data(), 10, 0) == 0);
  CHECK(b.poll().empty());
}

TEST_CASE("soft: limits and refusals are the real driver's") {
  const SoftDir dir;
  Side side;
  const auto& api = side.device.api();
  abi::ibv_qp_init_attr wanted{};
  wanted.send_cq = side.device.completions();
  wanted.recv_cq = side.device.completions();
  wanted.cap = {4, 4, 1, 1, 0};
  for (const auto type : {abi::IBV_QPT_RC, abi::IBV_QPT_UD}) {
    wanted.qp_type = type;
    CHECK(api.create_qp(side.device.domain(), &wanted) == nullptr);
    CHECK(errno == EOPNOTSUPP);
  }
  wanted.qp_type = abi::IBV_QPT_UC;
  wanted.cap.max_send_sge = 2;
  CHECK(api.create_qp(side.device.domain(), &wanted) == nullptr);
  CHECK(errno == EINVAL);
  {
    const Setting limit("JLAUNCH_SOFT_MAX_QP", "10");
    std::vector<std::unique_ptr<Connection>> nine;
    for (int i = 0; i < 9; ++i) {
      nine.push_back(std::make_unique<Connection>(side.device, i, 4));
    }
    const auto detail =
        detail_of([&] { const Connection eleventh(side.device, 9, 4); });
    CHECK(detail.find("errno 16") != std::string::npos);
    CHECK(detail.find("rank 9") != std::string::npos);
  }
  std::vector<RegionHandle> regions;
  for (int i = 0; i < 99; ++i) {
    regions.emplace_back(
        api.reg_mr(side.device.domain(), side.pages.data(), kPage, 1),
        api.dereg_mr);
    REQUIRE(regions.back().get() != nullptr);
  }
  CHECK(
      api.reg_mr(side.device.domain(), side.pages.data(), kPage, 1) == nullptr);
  CHECK(errno == ENOMEM);
}

TEST_CASE("soft: posts are checked") {
  const SoftDir dir;
  Side a(2);
  Side b(2);
  CHECK(a.send(a.pages.data(), 1, 0) == EINVAL); // not connected yet
  connect(a, b);
  std::byte outside{};
  CHECK(a.send(&outside, 1, 0) == EINVAL);
  CHECK(a.send(a.pages.data() + 4 * kPage - 1, 2, 0) == EINVAL);
  CHECK(a.send(a.pages.data(), 1, 0) == 0);
  CHECK(a.send(a.pages.data(), 1, 1) == 0);
  CHECK(a.send(a.pages.data(), 1, 2) == ENOMEM); // deeper than asked for
  CHECK(b.receive(0, 1, 0) == 0);
  CHECK(b.receive(0, 1, 1) == 0);
  CHECK(b.receive(0, 1, 2) == ENOMEM);
}

TEST_CASE("soft: a message longer than the buffer is an error, then a flush") {
  const SoftDir dir;
  Side a;
  Side b;
  connect(a, b);
  REQUIRE(b.receive(0, 10, 0) == 0);
  REQUIRE(b.receive(10, 10, 1) == 0);
  REQUIRE(a.send(a.pages.data(), 11, 0) == 0);
  auto got = b.poll();
  REQUIRE(got.size() == 1);
  CHECK(got[0].status == abi::IBV_WC_LOC_LEN_ERR);
  got = b.poll();
  REQUIRE(got.size() == 1);
  CHECK(got[0].status == abi::IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("soft: what a mad peer wrote into its file does no harm") {
  const SoftDir dir;
  Side a;
  Side b;
  connect(a, b);
  const auto node = *std::filesystem::directory_iterator(dir.dir.path());
  const auto file = soft::File::open_shared(node.path().string(), O_RDWR, 1);
  const soft::Mapping all(file, 0, file.size(), PROT_READ | PROT_WRITE);
  const auto number = a.connection.address().qp_num;
  const auto& header = *reinterpret_cast<soft::NodeHeader*>(all.data());
  auto& area = *reinterpret_cast<soft::QueueArea*>(
      all.data() + header.queues[number & soft::kQueueIndexMask]);
  REQUIRE(area.qp_num == number);
  REQUIRE(b.receive(0, 1000, 0) == 0);
  REQUIRE(a.send(a.pages.data(), 100, 0) == 0);
  SUBCASE("an offset far outside") {
    area.first.offset = std::uint64_t{1} << 60;
    const auto got = b.poll();
    REQUIRE(got.size() == 1);
    CHECK(got[0].status == abi::IBV_WC_REM_INV_REQ_ERR);
  }
  SUBCASE("a length that wraps around") {
    area.first.offset = ~std::uint64_t{0} - 10;
    const auto got = b.poll();
    REQUIRE(got.size() == 1);
    CHECK(got[0].status == abi::IBV_WC_REM_INV_REQ_ERR);
  }
  SUBCASE("a length beyond the buffer") {
    area.first.length = 0xFFFFFFFF;
    const auto got = b.poll();
    REQUIRE(got.size() == 1);
    CHECK(got[0].status == abi::IBV_WC_LOC_LEN_ERR);
  }
  SUBCASE("a head that ran away") {
    area.head = 1000;
    CHECK(b.poll().empty());
  }
  SUBCASE("a tail that ran away") {
    REQUIRE(b.send(b.pages.data(), 10, 0) == 0);
    area.tail = 1000;
    for (const auto& wc : b.poll()) {
      CHECK(wc.opcode == abi::IBV_WC_RECV);
    }
  }
  SUBCASE("a slot count that lies") {
    area.slots = 1U << 31;
    CHECK(b.poll().size() == 1); // ours from the time of the connection
  }
  SUBCASE("a peer that was connected to somebody else") {
    area.dest_qp_num = 1;
    CHECK(b.poll().empty());
  }
}

TEST_CASE("soft: a peer that is not there is refused, with words") {
  const SoftDir dir;
  Side a;
  auto nobody = a.connection.address();
  SUBCASE("no such queue pair") {
    nobody.qp_num += 1;
  }
  SUBCASE("no such node") {
    nobody.gid[15] ^= 1;
  }
  const auto detail = detail_of([&] { a.connection.connect(nobody); });
  CHECK(detail.find("errno 2") != std::string::npos);
  CHECK(detail.find("RTR") != std::string::npos);
}

TEST_CASE("soft: the directory must be given, exist, and be private") {
  const auto open = [] { const Side side; };
  unsetenv("JLAUNCH_SOFT_DIR");
  CHECK(
      detail_of(open).find("JLAUNCH_SOFT_DIR is not set") != std::string::npos);
  const SoftDir dir;
  ::chmod(dir.dir.path().c_str(), 0755);
  CHECK(detail_of(open).find("mode 0700") != std::string::npos);
  ::chmod(dir.dir.path().c_str(), 0700);
  setenv("JLAUNCH_SOFT_DIR", "/nonexistent", 1);
  CHECK(detail_of(open).find("/nonexistent") != std::string::npos);
}

TEST_CASE("soft: an unknown device is named, with those that exist") {
  const SoftDir dir;
  const Pages pages(kPage);
  Device::Config config;
  config.arena = pages.span();
  config.name = "rdma_en9";
  const auto detail = detail_of(
      [&] { const Device device(load_verbs(soft_library()), config); });
  CHECK(detail.find("rdma_en9") != std::string::npos);
  CHECK(detail.find("soft0, soft1") != std::string::npos);
  CHECK(detail_of([] {
          load_verbs("/nonexistent.so");
        }).find("--verbs soft") != std::string::npos);
}

TEST_CASE(
    "soft: names go when all are connected, when closed, or with the "
    "directory") {
  const SoftDir dir;
  {
    Side a;
    Side b;
    CHECK(dir.dir.entries() == 1); // one process: one node
    connect(a, b);
    a.device.seal();
    b.device.seal();
    CHECK(a.poll().empty());
    CHECK(dir.dir.entries() == 0);
    // The provider is not used up: what comes later has a node of its own.
    Side c;
    Side d;
    CHECK(dir.dir.entries() == 1);
    connect(c, d);
    REQUIRE(d.receive(0, 10, 0) == 0);
    REQUIRE(c.send(c.pages.data(), 10, 0) == 0);
    CHECK(d.poll().size() == 1);
  }
  CHECK(dir.dir.entries() == 0);
}

TEST_CASE("soft: a full file system is an error, not a SIGBUS") {
  const SoftDir dir;
  CHECK(Process([] {
          // No file of this process may grow beyond this.
          const rlimit limit{1 << 20, 1 << 20};
          RANK_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
          ::signal(SIGXFSZ, SIG_IGN);
          const Pages pages(8 << 20);
          Device::Config config;
          config.arena = pages.span();
          const auto detail = detail_of(
              [&] { const Device device(load_verbs(soft_library()), config); });
          RANK_CHECK(detail.find("ibv_reg_mr") != std::string::npos);
          RANK_CHECK(detail.find("no space") != std::string::npos);
        }).wait() == 0);
}

TEST_CASE("soft: a message wakes a peer that sleeps on its bell") {
  const World world(2); // blocks, and the directory
  CHECK(run_processes(world, [&](int rank) {
    const auto group = world.join(rank);
    auto& bell = world.blocks[0]->block();
    float value = 1;
    if (rank == 1) {
      // Rank 0 has announced that it sleeps: the message must ring.
      wait_for(bell.sleepers, 1);
      const auto before = bell.bell.load();
      group->send(&value, 1, Dtype::float32, 0);
      RANK_CHECK(bell.bell.load() == before + 1);
    } else {
      group->recv(&value, 1, Dtype::float32, 1);
    }
  }));
}
