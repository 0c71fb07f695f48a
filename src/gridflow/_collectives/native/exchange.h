/* The exchange of a step among the ranks of one host: what HostGroup.add_up does for float32, in the
 * same messages and with the same bits, so that a rank without this library can take part. */
#ifndef GRIDFLOW_EXCHANGE_H
#define GRIDFLOW_EXCHANGE_H

#include <pthread.h>
#include <stdint.h>

/* What begins a message between two ranks: _HEADER of host.py. */
typedef struct {
  uint64_t operation;
  uint64_t bytes;
  char dtype[8];
  uint64_t stage;
} Header;

/* How an exchange ends. TOLD: another rank said that one is missing, and why. */
enum { DONE, LATE, GONE, LEFT, CUT, TOLD, IN_ANOTHER, OTHER_SHAPES, IN_PYTHON };

typedef struct Arrays Arrays;

/* A rank's group: GroupState of __init__.py. */
typedef struct {
  int32_t rank, size;    /* among all ranks */
  int32_t place, places; /* among those of this host */
  int32_t hosts;
  const int32_t *ranks;  /* by place */
  const int32_t *links;  /* sockets by place; of this rank -1 */
  const int32_t *names;  /* what errors call all ranks */
  uint64_t count;        /* operations so far */
  uint8_t *memory;       /* two sides with a slot for each place, and one for sums */
  uint64_t room;         /* bytes of a slot */
  int32_t side;
  uint8_t told, asked, heard;
  double waited;
  int32_t missing; /* the rank because of which an exchange failed, and what it said */
  Header said;
  int (*in_python)(const Arrays *); /* what takes all other exchanges */
  char failure[512];                /* why one of those failed */
  union {
    pthread_mutex_t lock;
    uint64_t enough[8]; /* its size depends on the system */
  };
} Group;

/* Several arrays that travel as one. */
struct Arrays {
  int32_t count;
  const float *const *given;
  float *const *sums;
  const int64_t *lengths;
  int64_t weight;    /* how much this rank counts; negative: sums instead of means */
  int64_t *weights;  /* of all ranks, afterwards */
  uint32_t checksum; /* of the shapes */
};

/* The bytes of a Group (0), and of Arrays (1). */
int gridflow_size_of(int which);

void gridflow_lock(Group *group);
void gridflow_unlock(Group *group);

/* Whether they are exchanged here: large ones on one host, once its ranks share memory. */
int gridflow_can_add_up(const Group *group, const Arrays *arrays);

/* Exchanges arrays; the caller holds the lock. */
int gridflow_add_up(Group *group, const Arrays *arrays);

#endif
