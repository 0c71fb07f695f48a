/* The exchange as an operation of TensorFlow: the means of gradients over the rows of all ranks.
 *
 * Against TensorFlow's C API, of which the few declarations that are needed stand here, so that it
 * is built without TensorFlow. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "exchange.h"

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
enum { TF_OK = 0, TF_UNKNOWN = 2, MOST_DIMENSIONS = 254, MESSAGE_BYTES = 512 };

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *);
void TF_SetStatus(TF_Status *, int code, const char *);
int TF_GetCode(const TF_Status *);
int64_t TF_TensorElementCount(const TF_Tensor *);
int TF_NumDims(const TF_Tensor *);
int64_t TF_Dim(const TF_Tensor *, int);
void *TF_TensorData(const TF_Tensor *);
void TF_DeleteTensor(TF_Tensor *);
int TF_NumInputs(TF_OpKernelContext *);
void TF_GetInput(TF_OpKernelContext *, int, TF_Tensor **, TF_Status *);
TF_Tensor *TF_ForwardInputOrAllocateOutput(TF_OpKernelContext *, const int *candidates, int, int,
                                           const int64_t *dims, int, int *forwarded, TF_Status *);
void TF_OpKernelContext_Failure(TF_OpKernelContext *, TF_Status *);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction *, const char *, int64_t *,
                                          TF_Status *);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *, TF_Status *);
TF_KernelBuilder *TF_NewKernelBuilder(const char *op, const char *device,
                                      void *(*create)(TF_OpKernelConstruction *),
                                      void (*compute)(void *, TF_OpKernelContext *),
                                      void (*discard)(void *));
void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *, TF_Status *);
TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *, const char *);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder *, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder *,
                                                     void (*)(TF_ShapeInferenceContext *,
                                                              TF_Status *));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *, TF_Status *);
TF_ShapeHandle *TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle *);
int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext *);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *,
                                      TF_Status *);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *,
                                       TF_Status *);

/* Behind the values come the number of rows, and the variable by which exchanges are ordered. */
enum { OTHERS = 2 };

/* The group of this process, and how it says what went wrong, by the ends of an exchange. */
static Group *current;
static const char *words[OTHER_SHAPES + 1];

void gridflow_use(Group *group) { current = group; }

void gridflow_say(int how, const char *format) { words[how] = format; }

/* What ranks call the ways in which one goes missing. */
static const char *whys[] = {[LATE] = "late", [GONE] = "gone", [LEFT] = "left", [CUT] = "cut"};

/* Tells the others who is missing: they may be waiting for this rank. Returns how it is missing. */
static int give_up(Group *group, int how) {
  Header loss = {(uint64_t)group->missing, 0, "", UINT64_MAX - 1};
  if (how == TOLD) {
    loss = group->said;
    group->missing = (int32_t)loss.operation;
    for (how = CUT; how > LATE && strncmp(loss.dtype, whys[how], sizeof loss.dtype) != 0;) --how;
  } else if (how == LATE || how == GONE) {
    memcpy(loss.dtype, whys[how], strlen(whys[how]));
  } else {
    return how;
  }
  for (int place = 0; place < group->places; ++place)
    if (place != group->place) send(group->links[place], &loss, sizeof loss, MSG_NOSIGNAL);
  return how;
}

static void describe(const Group *group, int how, char *message) {
  if (how == IN_PYTHON) {
    snprintf(message, MESSAGE_BYTES, "%s", group->failure);
    return;
  }
  int written = snprintf(message, MESSAGE_BYTES, words[how], group->names[group->missing]);
  if (how == IN_ANOTHER && written > 0 && written < MESSAGE_BYTES)
    snprintf(message + written, (size_t)(MESSAGE_BYTES - written),
             " Here: operation %llu, gradients; there: operation %llu, %llu bytes of %.8s.",
             (unsigned long long)group->count + 1, (unsigned long long)group->said.operation + 1,
             (unsigned long long)group->said.bytes, group->said.dtype);
}

static void fail(TF_OpKernelContext *context, TF_Status *status, const char *message) {
  TF_SetStatus(status, TF_UNKNOWN, message);
  TF_OpKernelContext_Failure(context, status);
}

static void exchange(TF_OpKernelContext *context, uint32_t checksum, int count, TF_Tensor **inputs,
                     TF_Tensor **outputs, TF_Status *status) {
  Group *group = current;
  if (group == NULL) {
    fail(context, status, "this rank isn't in a group");
    return;
  }
  const float *given[count + 1];
  float *sums[count + 1];
  int64_t lengths[count + 1], weights[group->size];
  for (int k = 0; k < count; ++k) {
    given[k] = TF_TensorData(inputs[k]);
    sums[k] = TF_TensorData(outputs[k]);
    lengths[k] = TF_TensorElementCount(inputs[k]);
  }
  const int64_t rows = *(const int64_t *)TF_TensorData(inputs[count]);
  const Arrays arrays = {count, given, sums, lengths, rows, weights, checksum};
  char message[MESSAGE_BYTES];
  int how;
  if (gridflow_can_add_up(group, &arrays)) {
    gridflow_lock(group);
    how = give_up(group, gridflow_add_up(group, &arrays));
    if (how != DONE) describe(group, how, message);
    gridflow_unlock(group);
  } else {
    how = group->in_python(&arrays);
    if (how != DONE) describe(group, how, message);
  }
  if (how != DONE) fail(context, status, message);
}

/* Returns where the mean of a value belongs: in its own memory, if nobody else needs the value. */
static TF_Tensor *mean_of(TF_OpKernelContext *context, int k, TF_Status *status) {
  TF_Tensor *value;
  TF_GetInput(context, k, &value, status);
  if (TF_GetCode(status) != TF_OK) return NULL;
  int64_t dims[MOST_DIMENSIONS];
  const int rank = TF_NumDims(value);
  for (int axis = 0; axis < rank; ++axis) dims[axis] = TF_Dim(value, axis);
  TF_DeleteTensor(value); /* it would be one that needs it */
  int forwarded;
  return TF_ForwardInputOrAllocateOutput(context, &k, 1, k, dims, rank, &forwarded, status);
}

static void compute(void *kernel, TF_OpKernelContext *context) {
  const int count = TF_NumInputs(context) - OTHERS;
  TF_Status *status = TF_NewStatus();
  TF_Tensor *inputs[count + 1], *outputs[count + 1];
  memset(inputs, 0, sizeof inputs);
  memset(outputs, 0, sizeof outputs);
  bool is_ready = true;
  for (int k = 0; k <= count && is_ready; ++k) {
    if (k < count) outputs[k] = mean_of(context, k, status);
    if (TF_GetCode(status) == TF_OK) TF_GetInput(context, k, &inputs[k], status);
    is_ready = TF_GetCode(status) == TF_OK;
  }
  if (is_ready)
    exchange(context, *(uint32_t *)kernel, count, inputs, outputs, status);
  else
    TF_OpKernelContext_Failure(context, status);
  for (int k = 0; k <= count; ++k) {
    if (inputs[k]) TF_DeleteTensor(inputs[k]);
    if (outputs[k]) TF_DeleteTensor(outputs[k]);
  }
  TF_DeleteStatus(status);
}

static void *create(TF_OpKernelConstruction *construction) {
  TF_Status *status = TF_NewStatus();
  int64_t checksum = 0;
  uint32_t *kernel = malloc(sizeof *kernel);
  TF_OpKernelConstruction_GetAttrInt64(construction, "checksum", &checksum, status);
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  if (kernel != NULL) *kernel = (uint32_t)checksum;
  return kernel;
}

static void discard(void *kernel) { free(kernel); }

static void shapes(TF_ShapeInferenceContext *context, TF_Status *status) {
  TF_ShapeHandle *shape = TF_NewShapeHandle();
  const int count = (int)TF_ShapeInferenceContextNumInputs(context) - OTHERS;
  for (int k = 0; k < count && TF_GetCode(status) == TF_OK; ++k) {
    TF_ShapeInferenceContextGetInput(context, k, shape, status);
    if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, k, shape, status);
  }
  TF_DeleteShapeHandle(shape);
}

__attribute__((constructor)) static void register_operation(void) {
  TF_Status *status = TF_NewStatus();
  TF_OpDefinitionBuilder *definition = TF_NewOpDefinitionBuilder("GridflowMeanOfRows");
  TF_OpDefinitionBuilderAddAttr(definition, "N: int >= 1");
  TF_OpDefinitionBuilderAddAttr(definition, "checksum: int");
  TF_OpDefinitionBuilderAddInput(definition, "values: N * float");
  TF_OpDefinitionBuilderAddInput(definition, "rows: int64");
  TF_OpDefinitionBuilderAddInput(definition, "order: resource");
  TF_OpDefinitionBuilderAddOutput(definition, "means: N * float");
  TF_OpDefinitionBuilderSetIsStateful(definition, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, shapes);
  TF_RegisterOpDefinition(definition, status);
  if (TF_GetCode(status) == TF_OK)
    TF_RegisterKernelBuilder("GridflowMeanOfRows",
                             TF_NewKernelBuilder("GridflowMeanOfRows", "CPU", create, compute,
                                                 discard),
                             status);
  TF_DeleteStatus(status);
}
