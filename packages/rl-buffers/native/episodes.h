// The memory of an episode table: six arrays that the caller owns, and how slots, steps and pieces name each other.
//
// Time goes in write steps; a step fills one slot in each of `lanes` lanes: slot = step * lanes + lane. A piece is a run of
// steps of one lane that belong to one episode and were written one after the other. Pieces have stable numbers, so a
// slot needs to know its piece's number only: dropping a piece's oldest row touches one slot and one piece.
#pragma once

#include <cstdint>

namespace rl_buffers {

// Fields of the header, int64 each.
enum Header : std::int64_t {
  kMaxSteps = 0,     // capacity in steps: the ring's length
  kLanes = 1,        // slots of a step
  kHead = 2,         // the step after the one written last, -1 before any write
  kPieces = 3,       // how many pieces there are
  kNumbers = 4,      // piece numbers that were ever used; below them, those on the free stack are unused now
  kFree = 5,         // height of the free stack
  kFilled = 6,       // filled slots: 0 .. kFilled - 1
  kSlotRoom = 7,     // allocated slots
  kPieceRoom = 8,    // allocated pieces
  kHeaderSize = 9,
};

// Marks of a row.
constexpr std::uint8_t kCloses = 1;  // its episode ends with it
constexpr std::uint8_t kOpens = 2;   // an episode begins with it, whatever the row before says
constexpr std::uint8_t kLinked = 4;  // the row before it in the ring is the one that came before it in time

// Columns of a piece, int64 each.
enum Piece : std::int64_t { kStart = 0, kLength = 1, kLane = 2, kPlace = 3, kPieceSize = 4 };

struct EpisodeTable {
  std::int64_t* header;  // [kHeaderSize]
  std::uint8_t* marks;   // [slots]
  std::int32_t* owner;   // [slots] number of the slot's piece, -1 where nothing is written
  std::int64_t* pieces;  // [pieces, kPieceSize]
  std::int64_t* order;   // [pieces] the numbers of all present pieces, without gaps: what a uniform draw reads
  std::int64_t* free;    // [pieces] stack of unused numbers
};

}  // namespace rl_buffers
