// Row put: one row of Python tensors, looked at through the DLPack exchange API, checked and copied into a storage.
#include <cstdint>
#include <cstring>

#include "abi.h"

namespace {

using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint64_t;
using std::uint8_t;

// DLTensor of DLPack 1.x (dmlc/dlpack, include/dlpack/dlpack.h); the layout does not change within a major version.
struct View {
  const uint8_t* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
};

// Looks at a Python tensor without a copy or a new reference; -1 with a Python exception where that cannot be.
using Look = int (*)(void* object, View* out);

// Python's PyList_GetItem: an item of a list, without a new reference.
using Item = void* (*)(void* list, std::intptr_t index);

constexpr int32_t kCpu = 1;

// The plan, words of int64 that Python keeps: a head, then one record per leaf.
enum Head { kLook, kItem, kLeaves, kCapacity, kPlace, kHeadWords };
// `found` is filled in with the address of the values.
enum Leaf { kFound, kTarget, kRowBytes, kCode, kBits, kDims, kShape };

// Whether a tensor has the record's dtype and shape, and its values lie in main memory without gaps.
bool fits(const View& view, const int64_t* leaf) {
  if (view.device_type != kCpu || view.lanes != 1 || view.code != leaf[kCode] || view.bits != leaf[kBits] ||
      view.ndim != leaf[kDims])
    return false;
  int64_t stride = 1;
  for (int64_t dim = view.ndim - 1; dim >= 0; --dim) {
    const int64_t size = leaf[kShape + dim];
    if (view.shape[dim] != size || (view.strides && size > 1 && view.strides[dim] != stride)) return false;
    stride *= size;
  }
  return view.data || leaf[kRowBytes] == 0;
}

}  // namespace

// Row `place` of a storage takes the values of a Python list of tensors, one per leaf of the plan.
//
// Every tensor is checked before anything is written. Returns 0; the number (from 1) of the first leaf that is not as the
// plan says; or kNotATensor with a Python exception set. The caller holds Python's lock, and keeps the tensors alive.
RL_EXPORT int64_t rl_put_row(int64_t* plan, void* tensors) {
  if (!plan || !tensors) return rl_buffers::kBadArgument;
  const Look look = reinterpret_cast<Look>(static_cast<std::intptr_t>(plan[kLook]));
  const int64_t n = plan[kLeaves], place = plan[kPlace];
  const Item item = reinterpret_cast<Item>(static_cast<std::intptr_t>(plan[kItem]));
  if (!look || !item || n < 0) return rl_buffers::kBadArgument;
  if (place < 0 || place >= plan[kCapacity]) return rl_buffers::kIndexOutOfRange;
  int64_t* leaf = plan + kHeadWords;
  for (int64_t i = 0; i < n; ++i, leaf += kShape + leaf[kDims]) {
    View view{};
    void* tensor = item(tensors, i);
    if (!tensor || look(tensor, &view) != 0) return rl_buffers::kNotATensor;
    if (!fits(view, leaf)) return i + 1;
    leaf[kFound] = static_cast<int64_t>(reinterpret_cast<std::intptr_t>(view.data + view.byte_offset));
  }
  leaf = plan + kHeadWords;
  for (int64_t i = 0; i < n; ++i, leaf += kShape + leaf[kDims]) {
    const int64_t bytes = leaf[kRowBytes];
    if (bytes == 0) continue;
    uint8_t* target = reinterpret_cast<uint8_t*>(static_cast<std::intptr_t>(leaf[kTarget]));
    std::memcpy(target + place * bytes, reinterpret_cast<const uint8_t*>(static_cast<std::intptr_t>(leaf[kFound])),
                static_cast<std::size_t>(bytes));
  }
  return rl_buffers::kOk;
}
