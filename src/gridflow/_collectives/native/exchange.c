#include "exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* As in host.py and parts.py. */
enum { PIECE_BYTES = 1 << 20, SMALL_BYTES = 2048, FEW = 4, ALIGNED = 64 / sizeof(float), NOTE_BYTES = 13 };
static const uint64_t LOSS = UINT64_MAX - 1;

static int64_t smaller(int64_t one, int64_t other) { return one < other ? one : other; }
static int64_t larger(int64_t one, int64_t other) { return one > other ? one : other; }
static int64_t aligned(int64_t length) { return (length + ALIGNED - 1) / ALIGNED * ALIGNED; }

int gridflow_size_of(int which) { return which == 0 ? sizeof(Group) : sizeof(Arrays); }

void gridflow_lock(Group *group) { pthread_mutex_lock(&group->lock); }
void gridflow_unlock(Group *group) { pthread_mutex_unlock(&group->lock); }

/* Meeting ----------------------------------------------------------------------------------------*/

static void tell(int link, const Header *header) {
  const char *at = (const char *)header;
  size_t left = sizeof *header;
  while (left > 0) {
    const ssize_t sent = send(link, at, left, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return; /* its earlier messages can still be read, and then its end */
    at += sent;
    left -= (size_t)sent;
  }
}

static int hear(int link, Header *header) {
  ssize_t count;
  do {
    count = recv(link, header, sizeof *header, MSG_WAITALL);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return LATE;
  return count == sizeof *header ? DONE : GONE;
}

static double now(void) {
  struct timespec found;
  clock_gettime(CLOCK_MONOTONIC, &found);
  return (double)found.tv_sec + 1e-9 * (double)found.tv_nsec;
}

/* Waits until all ranks have called the same operation. */
static int meet(Group *group, Header *mine, uint64_t stage) {
  mine->stage = stage;
  for (int place = 0; place < group->places; ++place)
    if (place != group->place) tell(group->links[place], mine);
  const double began = now();
  int how = DONE;
  for (int place = 0; place < group->places && how == DONE; ++place) {
    if (place == group->place) continue;
    group->missing = group->ranks[place];
    how = hear(group->links[place], &group->said);
    if (how == DONE && memcmp(&group->said, mine, sizeof *mine) != 0)
      how = group->said.stage == LOSS ? TOLD : IN_ANOTHER;
  }
  group->waited += now() - began;
  return how;
}

/* Adding up --------------------------------------------------------------------------------------*/

static void weigh(float *restrict to, const float *restrict from, int64_t count, float weight) {
  for (int64_t k = 0; k < count; ++k) to[k] = from[k] * weight;
}

/* Adds numbers of all places, in their order, and multiplies the sums. */
static void add(const Group *group, float *const *slots, int64_t at, float *restrict to,
                int64_t count, float share) {
  const float *restrict one = slots[0] + at;
  if (group->places == 1) {
    weigh(to, one, count, share);
    return;
  }
  const float *restrict two = slots[1] + at;
  if (group->places == 2) {
    for (int64_t k = 0; k < count; ++k) to[k] = (one[k] + two[k]) * share;
    return;
  }
  for (int64_t k = 0; k < count; ++k) to[k] = one[k] + two[k];
  for (int place = 2; place < group->places; ++place) {
    const float *restrict next = slots[place] + at;
    for (int64_t k = 0; k < count; ++k) to[k] += next[k];
  }
  for (int64_t k = 0; k < count; ++k) to[k] *= share;
}

/* The notes, and then each array, at multiples of 64 bytes. */
typedef struct {
  float *notes;
  const Arrays *arrays;
} Parts;

static int64_t length_of(const Parts *parts, int part, int64_t notes) {
  return part == 0 ? notes : parts->arrays->lengths[part - 1];
}

/* Writes this rank's numbers from start on, weighted, and zeros where there are none. */
static void write_piece(const Parts *parts, int64_t notes, int64_t start, int64_t stop,
                        float *into) {
  const Arrays *arrays = parts->arrays;
  int64_t begin = 0;
  for (int part = 0; part <= arrays->count && begin < stop; ++part) {
    const int64_t length = length_of(parts, part, notes), end = begin + aligned(length);
    if (end > start) {
      const int64_t from = larger(start - begin, 0), all = smaller(stop, end) - begin - from;
      const int64_t there = larger(smaller(length - from, all), 0);
      float *to = into + begin + from - start;
      const float *given = part == 0 ? parts->notes : arrays->given[part - 1];
      if (part > 0 && arrays->weight == 0) /* numbers that don't count may be anything */
        memset(to, 0, (size_t)there * sizeof *to);
      else if (part > 0 && arrays->weight > 0)
        weigh(to, given + from, there, (float)arrays->weight);
      else
        memcpy(to, given + from, (size_t)there * sizeof *to);
      memset(to + there, 0, (size_t)(all - there) * sizeof *to);
    }
    begin = end;
  }
}

/* Reads the notes of all ranks; returns by what sums are multiplied, and the rank that differs. */
static float read_notes(const Group *group, const Arrays *arrays, const float *notes, int *differs,
                        uint8_t *flags) {
  int64_t total = 0;
  *differs = -1;
  *flags = 0;
  for (int rank = 0; rank < group->size; ++rank) {
    uint8_t note[NOTE_BYTES];
    for (int k = 0; k < NOTE_BYTES; ++k) note[k] = (uint8_t)notes[rank * NOTE_BYTES + k];
    uint64_t weight;
    uint32_t checksum;
    memcpy(&weight, note, sizeof weight);
    memcpy(&checksum, note + 9, sizeof checksum);
    arrays->weights[rank] = (int64_t)weight;
    total += (int64_t)weight;
    *flags |= note[8];
    if (checksum != arrays->checksum && *differs < 0) *differs = rank;
  }
  if (arrays->weight < 0) return 1;
  return total ? (float)(1 / (double)total) : 0;
}

/* Adds up from start on, into the arrays. */
static void read_piece(const Group *group, const Parts *parts, int64_t notes, int64_t start,
                       int64_t stop, float *const *slots, const float *total, float share) {
  const Arrays *arrays = parts->arrays;
  int64_t begin = aligned(notes);
  for (int part = 1; part <= arrays->count && begin < stop; ++part) {
    const int64_t length = arrays->lengths[part - 1], end = begin + aligned(length);
    const int64_t from = larger(start - begin, 0), upto = smaller(stop - begin, length);
    if (upto > from) {
      float *to = arrays->sums[part - 1] + from;
      const int64_t at = begin + from - start;
      if (total)
        weigh(to, total + at, upto - from, share);
      else
        add(group, slots, at, to, upto - from, share);
    }
    begin = end;
  }
}

static int64_t length_of_all(const Group *group, const Arrays *arrays) {
  int64_t length = aligned((int64_t)group->size * NOTE_BYTES);
  for (int k = 0; k < arrays->count; ++k) length += aligned(arrays->lengths[k]);
  return length;
}

int gridflow_can_add_up(const Group *group, const Arrays *arrays) {
  const int64_t bytes = length_of_all(group, arrays) * (int64_t)sizeof(float);
  return group->hosts == 1 && bytes > SMALL_BYTES &&
         (uint64_t)smaller(bytes, PIECE_BYTES) <= group->room;
}

int gridflow_add_up(Group *group, const Arrays *arrays) {
  const int64_t notes = (int64_t)group->size * NOTE_BYTES;
  const int64_t length = length_of_all(group, arrays);
  const int64_t most = PIECE_BYTES / (int64_t)sizeof(float);

  float *slots[group->places], *sums = NULL;
  float *mine = calloc((size_t)notes * 2, sizeof *mine);
  if (mine == NULL) abort();
  sums = mine + notes;
  uint8_t note[NOTE_BYTES];
  const uint64_t weight = arrays->weight > 0 ? (uint64_t)arrays->weight : 0;
  memcpy(note, &weight, sizeof weight);
  note[8] = group->told | group->asked;
  memcpy(note + 9, &arrays->checksum, sizeof arrays->checksum);
  for (int k = 0; k < NOTE_BYTES; ++k) mine[group->rank * NOTE_BYTES + k] = note[k];

  const Parts parts = {mine, arrays};
  Header header = {group->count, (uint64_t)length * sizeof(float), "float32", 0};
  float share = 1;
  int how = DONE, differs = -1;
  uint8_t flags = 0;
  for (int64_t start = 0, stage = 0; start < length && how == DONE; start += most, stage += 2) {
    const int64_t stop = smaller(start + most, length), count = stop - start;
    /* A rank that is ahead overwrites nothing still being read: pieces alternate. */
    group->side ^= 1;
    uint8_t *base = group->memory + (uint64_t)(group->side * (group->places + 1)) * group->room;
    for (int place = 0; place < group->places; ++place)
      slots[place] = (float *)(base + (uint64_t)place * group->room);
    float *total = (float *)(base + (uint64_t)group->places * group->room);
    write_piece(&parts, notes, start, stop, slots[group->place]);
    how = meet(group, &header, (uint64_t)stage);
    if (how != DONE) break;
    if (group->places > FEW) { /* share the work in a second round */
      const int64_t part = (count + group->places - 1) / group->places;
      const int64_t from = smaller(group->place * part, count), upto = smaller(from + part, count);
      add(group, slots, from, total + from, upto - from, 1);
      how = meet(group, &header, (uint64_t)stage + 1);
      if (how != DONE) break;
    } else {
      total = NULL;
    }
    if (start == 0) { /* pieces are never as small as the notes */
      if (total)
        memcpy(sums, total, (size_t)notes * sizeof *sums);
      else
        add(group, slots, 0, sums, notes, 1);
      share = read_notes(group, arrays, sums, &differs, &flags);
    }
    read_piece(group, &parts, notes, start, stop, slots, total, share);
  }
  free(mine);
  if (how != DONE) return how;
  ++group->count;
  if (differs >= 0) {
    group->missing = differs;
    return OTHER_SHAPES;
  }
  group->heard |= flags;
  return DONE;
}
