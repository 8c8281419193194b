#include "delivery.h"

#include <charconv>
#include <system_error>
#include <utility>

namespace jlaunch {

namespace {

constexpr std::string_view kMarker = " [jlaunch loss ";

bool is_stop(const Failure& failure) {
  return failure.kind == Failure::Kind::job_stopping ||
      failure.kind == Failure::Kind::control_lost;
}

std::optional<std::size_t> marked_number(std::string_view text) {
  auto at = text.rfind(kMarker);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  auto digits = text.substr(at + kMarker.size());
  std::size_t number = 0;
  auto end = digits.data() + digits.size();
  auto [rest, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || rest == end || *rest != ']') {
    return std::nullopt;
  }
  return number;
}

} // namespace

std::string_view without_marker(std::string_view text) {
  return text.substr(0, text.rfind(kMarker));
}

Delivery::Delivery(std::function<bool()> request_call)
    : request_call_(std::move(request_call)) {}

Origin Delivery::origin(bool main_thread) const {
  std::lock_guard lock(mutex_);
  const bool stale = main_thread && deferring_;
  return {stale ? generation_ - 1 : generation_, main_thread};
}

std::optional<std::string> Delivery::failed(
    const Failure& failure,
    Origin origin) {
  std::lock_guard lock(mutex_);
  const auto number = number_of(failure);
  const bool current = origin.generation == generation_;
  if (origin.main_thread && !current) {
    return std::nullopt;
  }
  // The main thread hears of every loss, whoever met it; of the same loss
  // again only through a collective of its own.
  if (origin.main_thread || !losses_[number].told) {
    open(number);
  }
  return failure.detail + std::string(kMarker) + std::to_string(number) + "]";
}

std::optional<Failure> Delivery::find(std::string_view text) const {
  const auto number = marked_number(text);
  std::lock_guard lock(mutex_);
  if (!number || *number >= losses_.size()) {
    return std::nullopt;
  }
  return losses_[*number].failure;
}

void Delivery::delivered(const Failure& failure) {
  std::lock_guard lock(mutex_);
  close(number_of(failure));
}

std::optional<Failure> Delivery::take() {
  std::lock_guard lock(mutex_);
  call_requested_ = false;
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    if (losses_[i].open) {
      close(i);
      return losses_[i].failure;
    }
  }
  return std::nullopt;
}

void Delivery::set_deferring(const Failure* failure) {
  std::lock_guard lock(mutex_);
  deferring_ = failure != nullptr;
  if (failure != nullptr) {
    open(number_of(*failure));
  }
}

bool Delivery::claim_stop() {
  std::lock_guard lock(mutex_);
  if (stop_told_) {
    return false;
  }
  stop_told_ = true;
  ++generation_;
  for (auto& loss : losses_) {
    if (is_stop(loss.failure)) {
      loss.told = true;
      loss.open = false;
    }
  }
  return true;
}

std::size_t Delivery::number_of(const Failure& failure) {
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    const auto& known = losses_[i].failure;
    if (known.group == failure.group && known.epoch == failure.epoch &&
        known.kind == failure.kind) {
      return i;
    }
  }
  losses_.push_back({.failure = failure});
  return losses_.size() - 1;
}

void Delivery::open(std::size_t number) {
  losses_[number].open = true;
  if (!call_requested_) {
    call_requested_ = request_call_();
  }
}

void Delivery::close(std::size_t number) {
  ++generation_;
  auto& loss = losses_[number];
  loss.told = true;
  loss.open = false;
  stop_told_ = stop_told_ || is_stop(loss.failure);
}

} // namespace jlaunch
