// The episode table: where episodes lie in a ring of rows, kept up to date by each write and asked in constant time.
#include "episodes.h"

#include <cmath>
#include <cstdint>

#include "abi.h"

namespace {

using namespace rl_buffers;
using std::int32_t;
using std::int64_t;
using std::uint64_t;
using std::uint8_t;

constexpr int64_t kAttempts = 32;  // draws of a piece before the caller has to look at all of them

struct View : EpisodeTable {
  int64_t max_steps, lanes;

  View(int64_t* header_, uint8_t* marks_, int32_t* owner_, int64_t* pieces_, int64_t* order_, int64_t* free_)
      : EpisodeTable{header_, marks_, owner_, pieces_, order_, free_},
        max_steps(header_[kMaxSteps]),
        lanes(header_[kLanes]) {}

  int64_t* piece(int64_t number) { return pieces + number * kPieceSize; }
  int64_t wrapped(int64_t step) const { return step >= max_steps ? step - max_steps : step; }
  int64_t before(int64_t slot) const {
    return slot >= lanes ? slot - lanes : slot + (max_steps - 1) * lanes;
  }
  int64_t after(int64_t slot) const {
    const int64_t next = slot + lanes;
    return next < max_steps * lanes ? next : next - max_steps * lanes;
  }
  int64_t slot_of(const int64_t* a_piece, int64_t offset) const {
    return wrapped(a_piece[kStart] + offset) * lanes + a_piece[kLane];
  }
  int64_t offset_of(const int64_t* a_piece, int64_t slot) const {
    const int64_t distance = slot / lanes - a_piece[kStart];
    return distance < 0 ? distance + max_steps : distance;
  }

  int64_t create(int64_t start, int64_t length, int64_t lane) {
    const int64_t number = header[kFree] > 0 ? free[--header[kFree]] : header[kNumbers]++;
    int64_t* made = piece(number);
    made[kStart] = start;
    made[kLength] = length;
    made[kLane] = lane;
    made[kPlace] = header[kPieces];
    order[header[kPieces]++] = number;
    return number;
  }

  // The last piece takes the place of the one that goes.
  void remove(int64_t number) {
    const int64_t place = piece(number)[kPlace];
    const int64_t last = order[--header[kPieces]];
    order[place] = last;
    piece(last)[kPlace] = place;
    free[header[kFree]++] = number;
  }

  // Steps offset .. length - 1 of a piece become a piece of their own.
  void split(int64_t number, int64_t offset) {
    int64_t* old = piece(number);
    const int64_t length = old[kLength] - offset;
    old[kLength] = offset;
    const int64_t made = create(wrapped(old[kStart] + offset), length, old[kLane]);
    const int64_t* tail = piece(made);
    for (int64_t k = 0; k < length; ++k) owner[slot_of(tail, k)] = static_cast<int32_t>(made);
  }

  // The later of two neighbours becomes part of the earlier.
  void join(int64_t earlier, int64_t later) {
    int64_t* tail = piece(later);
    for (int64_t k = 0; k < tail[kLength]; ++k) owner[slot_of(tail, k)] = static_cast<int32_t>(earlier);
    piece(earlier)[kLength] += tail[kLength];
    remove(later);
  }

  void evict(int64_t slot) {
    const int64_t number = owner[slot];
    int64_t* old = piece(number);
    const int64_t offset = offset_of(old, slot);
    if (offset + 1 < old[kLength] && offset > 0) split(number, offset + 1);
    old = piece(number);
    if (offset == 0) old[kStart] = wrapped(old[kStart] + 1);
    old[kLength] -= 1;
    if (old[kLength] == 0) remove(number);
    owner[slot] = -1;
  }

  bool joined(int64_t slot) const {
    return (marks[slot] & kLinked) && !(marks[slot] & kOpens) && !(marks[before(slot)] & kCloses);
  }

  void append(int64_t slot, uint8_t mark) {
    if (owner[slot] >= 0) evict(slot);
    const int64_t next = after(slot), previous = before(slot);
    // What comes next in the ring is no longer what comes next in time.
    if (next < header[kFilled]) marks[next] &= static_cast<uint8_t>(~kLinked);
    if (previous == slot || previous >= header[kSlotRoom] || owner[previous] < 0) mark &= static_cast<uint8_t>(~kLinked);
    marks[slot] = mark;
    if (joined(slot)) {
      owner[slot] = owner[previous];
      piece(owner[previous])[kLength] += 1;
    } else {
      owner[slot] = static_cast<int32_t>(create(slot / lanes, 1, slot % lanes));
    }
  }

  // Split or join at the border before a slot, as the marks now say.
  void settle(int64_t slot) {
    const int64_t number = owner[slot], offset = offset_of(piece(number), slot);
    const bool together = joined(slot);
    if (offset > 0 && !together) split(number, offset);
    if (offset == 0 && together) join(owner[before(slot)], number);
  }
};

// The generator of Steele, Lea and Flood (2014, "Fast splittable pseudorandom number generators"): one stream per draw.
struct Stream {
  uint64_t state;
  double uniform() {
    state += 0x9E3779B97F4A7C15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1.0p-53;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(std::floor(uniform() * static_cast<double>(n))); }
};

}  // namespace

#define RL_TABLE int64_t *header, uint8_t *marks, int32_t *owner, int64_t *pieces, int64_t *order, int64_t *free_stack
#define RL_VIEW View table(header, marks, owner, pieces, order, free_stack)
#define RL_ABSENT (!header || !marks || !owner || !pieces || !order || !free_stack)

// Take note of `steps` new steps from `start` on, without wrapping: new_marks holds one mark per slot, step by step.
// A first step that does not continue the ring's head loses its link whatever its mark says.
RL_EXPORT int64_t rl_episodes_write(RL_TABLE, int64_t start, int64_t steps, const uint8_t* new_marks) {
  if (RL_ABSENT || start < 0 || steps < 0 || (steps > 0 && !new_marks)) return kBadArgument;
  RL_VIEW;
  if (start + steps > table.max_steps) return kIndexOutOfRange;
  const int64_t rows = steps * table.lanes, stop = (start + steps) * table.lanes;
  const int64_t most = header[kPieces] + 2 * rows < header[kSlotRoom] ? header[kPieces] + 2 * rows : header[kSlotRoom];
  if (stop > header[kSlotRoom] || most > header[kPieceRoom]) return kNoRoom;
  for (int64_t step = 0; step < steps; ++step) {
    const bool follows = start + step == header[kHead];
    for (int64_t lane = 0; lane < table.lanes; ++lane) {
      const int64_t slot = (start + step) * table.lanes + lane;
      uint8_t mark = new_marks[step * table.lanes + lane];
      if (!follows) mark &= static_cast<uint8_t>(~kLinked);
      table.append(slot, mark);
    }
    if ((start + step + 1) * table.lanes > header[kFilled]) header[kFilled] = (start + step + 1) * table.lanes;
    header[kHead] = table.wrapped(start + step + 1);
  }
  return kOk;
}

// New closing and opening marks of filled slots, one after the other; links stay.
RL_EXPORT int64_t rl_episodes_mark(RL_TABLE, const int64_t* slots, int64_t n, const uint8_t* new_marks, int64_t* bad) {
  if (RL_ABSENT || n < 0 || !bad || (n > 0 && (!slots || !new_marks))) return kBadArgument;
  RL_VIEW;
  for (int64_t i = 0; i < n; ++i) {
    if (slots[i] < 0 || slots[i] >= header[kFilled]) {
      *bad = i;
      return kIndexOutOfRange;
    }
  }
  const int64_t most = header[kPieces] + 2 * n < header[kSlotRoom] ? header[kPieces] + 2 * n : header[kSlotRoom];
  if (most > header[kPieceRoom]) return kNoRoom;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t slot = slots[i], next = table.after(slot);
    marks[slot] = static_cast<uint8_t>((marks[slot] & kLinked) | (new_marks[i] & (kCloses | kOpens)));
    table.settle(slot);
    if (next < header[kFilled] && owner[next] >= 0) table.settle(next);
  }
  return kOk;
}

// Draw n slices: first slot and number of rows of each.
//
// words: one seed per slice. by_step: 0 draws a piece uniformly and then a start within it, 1 draws uniformly over all
// possible starts. length: rows wanted. left, right: how many rows a slice may lack at its piece's edges. strict: 1 leaves
// out pieces shorter than `length`, 0 takes them whole. A slice whose attempts all failed gets counts[i] = 0.
// Returns the number of those.
RL_EXPORT int64_t rl_episodes_draw(RL_TABLE, const int64_t* words, int64_t n, int64_t by_step, int64_t length, int64_t left,
                                   int64_t right, int64_t strict, int64_t* first, int64_t* counts) {
  if (RL_ABSENT || n < 0 || length < 1 || left < 0 || right < 0 || (n > 0 && (!words || !first || !counts))) {
    return kBadArgument;
  }
  RL_VIEW;
  int64_t failed = 0;
  for (int64_t i = 0; i < n; ++i) {
    Stream stream{static_cast<uint64_t>(words[i])};
    counts[i] = first[i] = 0;
    for (int64_t attempt = 0; attempt < kAttempts && header[kPieces] > 0; ++attempt) {
      int64_t begin, end;
      const int64_t* piece;
      if (by_step) {
        const int64_t slot = stream.below(header[kFilled]);
        if (owner[slot] < 0) continue;
        piece = table.piece(owner[slot]);
        begin = table.offset_of(piece, slot);
        end = begin + length;
        const bool whole = !strict && begin == 0 && piece[kLength] < length;
        if (end > piece[kLength] && !whole) continue;
      } else {
        piece = table.piece(order[stream.below(header[kPieces])]);
        if (strict && piece[kLength] < length) continue;
        const int64_t lowest = -left;
        int64_t highest = piece[kLength] - length + right;
        if (highest < 0) highest = 0;
        begin = lowest + stream.below(highest - lowest + 1);
        end = begin + length;
        if (begin < 0) begin = 0;
      }
      if (end > piece[kLength]) end = piece[kLength];
      first[i] = table.slot_of(piece, begin);
      counts[i] = end - begin;
      break;
    }
    if (counts[i] == 0) ++failed;
  }
  return failed;
}

// The slots of n runs of rows, one after the other: run i begins at slot first[i] and has counts[i] rows of its lane.
// width > 0: each run fills `width` places, the last slot repeated; else runs lie without gaps.
RL_EXPORT int64_t rl_episodes_expand(RL_TABLE, const int64_t* first, const int64_t* counts, int64_t n, int64_t width,
                                     int64_t* slots, int64_t room) {
  if (RL_ABSENT || n < 0 || room < 0 || (n > 0 && (!first || !counts)) || (room > 0 && !slots)) return kBadArgument;
  RL_VIEW;
  int64_t used = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t places = width > 0 ? width : counts[i];
    if (first[i] < 0 || first[i] >= header[kFilled] || counts[i] < 1 || counts[i] > places) return kIndexOutOfRange;
    if (used + places > room) return kNoRoom;
    int64_t slot = first[i];
    for (int64_t k = 0; k < places; ++k) {
      slots[used++] = slot;
      if (k + 1 < counts[i]) slot = table.after(slot);
    }
  }
  return used;
}

// Where filled slots lie: the number of their piece, the rows of the piece before them, and those from them to its end.
RL_EXPORT int64_t rl_episodes_locate(RL_TABLE, const int64_t* slots, int64_t n, int64_t* numbers, int64_t* offsets,
                                     int64_t* left, int64_t* bad) {
  if (RL_ABSENT || n < 0 || !bad || (n > 0 && (!slots || !numbers || !offsets || !left))) return kBadArgument;
  RL_VIEW;
  for (int64_t i = 0; i < n; ++i) {
    if (slots[i] < 0 || slots[i] >= header[kFilled] || owner[slots[i]] < 0) {
      *bad = i;
      return kIndexOutOfRange;
    }
    const int64_t number = owner[slots[i]];
    const int64_t* piece = table.piece(number);
    numbers[i] = number;
    offsets[i] = table.offset_of(piece, slots[i]);
    left[i] = piece[kLength] - offsets[i];
  }
  return kOk;
}
