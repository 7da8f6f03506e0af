// Row put: what is copied and what is refused, with made-up tensors in the place of Python's.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint64_t;
using std::uint8_t;

extern "C" int64_t rl_put_row(int64_t* plan, void* tensors);

namespace {

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
      std::exit(1);                                                           \
    }                                                                         \
  } while (0)

struct View {  // as in put.cpp
  const void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
};

using List = std::vector<View*>;

int look(void* object, View* out) {
  if (!object) return -1;
  *out = *static_cast<View*>(object);
  return 0;
}

void* item(void* list, std::intptr_t index) {
  const List& values = *static_cast<List*>(list);
  return index < static_cast<std::intptr_t>(values.size()) ? values[static_cast<std::size_t>(index)] : nullptr;
}

int64_t address(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<std::intptr_t>(pointer)); }

}  // namespace

int main() {
  // Two leaves of three rows: float32 [2, 3] and a bool without dimensions.
  float numbers[3 * 6] = {};
  uint8_t flags[3] = {};
  std::vector<int64_t> plan = {address(reinterpret_cast<void*>(&look)), address(reinterpret_cast<void*>(&item)), 2, 3, 0};
  for (int64_t word : {int64_t{0}, address(numbers), int64_t{24}, int64_t{2}, int64_t{32}, int64_t{2}, int64_t{2}, int64_t{3}})
    plan.push_back(word);
  for (int64_t word : {int64_t{0}, address(flags), int64_t{1}, int64_t{6}, int64_t{8}, int64_t{0}}) plan.push_back(word);

  const float row[7] = {0, 1, 2, 3, 4, 5, 6};
  const uint8_t flag = 1;
  const int64_t shape[2] = {2, 3}, strides[2] = {3, 1}, turned[2] = {1, 2};
  View first{row, 1, 0, 2, 2, 32, 1, shape, strides, 4};
  View second{&flag, 1, 0, 0, 6, 8, 1, nullptr, nullptr, 0};
  List tensors = {&first, &second};

  plan[4] = 2;
  CHECK(rl_put_row(plan.data(), &tensors) == 0);
  CHECK(std::memcmp(numbers + 12, row + 1, 24) == 0 && flags[2] == 1 && numbers[11] == 0 && flags[1] == 0);
  first.strides = nullptr;  // dense
  plan[4] = 0;
  CHECK(rl_put_row(plan.data(), &tensors) == 0 && numbers[0] == 1);

  plan[4] = 1;  // nothing of what follows is written
  const View whole = first;
  const auto refused = [&](int64_t code) { return rl_put_row(plan.data(), &tensors) == code && numbers[6] == 0 && flags[1] == 0; };
  first.strides = turned;
  CHECK(refused(1));
  first = whole, first.bits = 64;
  CHECK(refused(1));
  first = whole, first.code = 0;
  CHECK(refused(1));
  first = whole, first.device_type = 2;
  CHECK(refused(1));
  first = whole, first.lanes = 2;
  CHECK(refused(1));
  first = whole, first.ndim = 1;
  CHECK(refused(1));
  first = whole, first.shape = strides;
  CHECK(refused(1));
  first = whole, first.data = nullptr;
  CHECK(refused(1));
  first = whole, second.code = 1;
  CHECK(refused(2));
  second.code = 6;
  tensors = {&first};  // the second one cannot be had
  CHECK(refused(-8));
  tensors = {nullptr, &second};
  CHECK(refused(-8));
  tensors = {&first, &second};
  plan[4] = 3;
  CHECK(refused(-1));
  plan[4] = -1;
  CHECK(refused(-1));
  CHECK(rl_put_row(nullptr, &tensors) == -2 && rl_put_row(plan.data(), nullptr) == -2);
  plan[4] = 1;
  CHECK(rl_put_row(plan.data(), &tensors) == 0 && numbers[6] == 1 && flags[1] == 1);
  std::puts("put: ok");
  return 0;
}
