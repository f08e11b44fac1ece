/* SPDX-License-Identifier: MIT */
/* rowfold: a linear layer, elementwise operators and a row reduction as one fused operation.
 *
 *     rf_model *model = NULL;
 *     rf_config config = { .size = sizeof config, .chain = "linear(8192, 8192) | logsumexp | gelu" };
 *     if (rf_model_create(&model, &config) != RF_OK) { fprintf(stderr, "%s\n", rf_last_error()); return 1; }
 *     rf_model_load_weights(model, W, b, NULL, 0);           W (out_features, in_features) row-major, b (out_features)
 *     rf_model_forward(model, x, batch, y);                  x (batch, in_features) row-major, y (batch, 1)
 *     rf_model_destroy(model);
 *
 * This header is the manual. Conventions:
 *  - Every function that can fail returns an rf_status, RF_OK (0) on success, and hands results out through pointers. On any other
 *    status nothing was written through the caller's pointers, and rf_last_error() has a sentence that names the argument, what came
 *    and what was expected. The library never prints, aborts or exits.
 *  - Structs that may grow begin with `size`, to be set to sizeof the struct; set the rest to zero first. Zero always means "default".
 *    So a program goes on working with a library of another version than its header: what a shorter struct lacks counts as zero (and is not
 *    written, where the library fills the struct in), and what a longer one has besides must be zero, else RF_INVALID_ARGUMENT. In an array
 *    every element has its size, the same one. The other struct, rf_op, stays as it is.
 *  - Enum values are fixed for all releases.
 *  - Buffers are aligned to the type of their elements, unless more is said.
 *  - Shapes are written (rows, columns), row-major unless a leading dimension is given. Leading dimensions count elements.
 *  - Threads: different models are independent. A model is immutable once its weights are loaded (but for rf_model_update_weights, which
 *    needs it for itself), and then any number of threads may call its forward, workspace and explain functions at once, also while another loads them: RF_NOT_LOADED until that is done. Of threads that load
 *    one model at once, one does; the others get RF_ALREADY_LOADED. Nobody may use a model that is being destroyed.
 *  - The calling thread's floating-point mode (rounding, subnormals as zeros, traps) changes no bit of a result, and is as before afterwards. A thread is not
 *    cancelled (pthread_cancel) inside a call.
 */
#ifndef ROWFOLD_H
#define ROWFOLD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Statuses. lib/status.def in the source holds the list with a sentence each; rf_status_message() returns that sentence. */
typedef enum rf_status {
    RF_OK = 0,
    RF_INVALID_ARGUMENT = 1,    /* NULL, a negative or overflowing size, an unknown enum value, a wrong leading dimension ... */
    RF_INVALID_CHAIN = 2,       /* the chain text or op list; the sentence points at the column */
    RF_NOT_LOADED = 3,          /* forward, workspace_size before the weights: load them first */
    RF_ALREADY_LOADED = 4,      /* weights are loaded once: create another model */
    RF_OUT_OF_MEMORY = 5,       /* host or device memory; the model still destroys cleanly */
    RF_UNSUPPORTED = 6,         /* the forced backend cannot run this model: the sentence says why; let the library choose */
    RF_UNAVAILABLE = 7,         /* the backend or device asked for is not in this machine or build */
    RF_WORKSPACE_TOO_SMALL = 8, /* ask rf_model_workspace_size */
    RF_BUFFER_TOO_SMALL = 9,    /* text did not fit: the size it needs was returned */
    RF_DEVICE_ERROR = 10,       /* CUDA's own text is in the sentence */
    RF_IO_ERROR = 11,           /* open, read or map of a file failed */
    RF_INVALID_FILE = 12,       /* the file's content breaks its format */
    RF_INTERNAL = 13,
    RF_COMMUNICATION = 14       /* ranks could not exchange states: one is gone, late, or its transport failed */
} rf_status;

typedef enum rf_dtype {
    RF_DTYPE_DEFAULT = 0,
    RF_FLOAT32 = 1,
    RF_FLOAT64 = 2,
    RF_FLOAT16 = 3,  /* IEEE binary16, as uint16_t bit patterns */
    RF_BFLOAT16 = 4, /* the upper half of a float32, as uint16_t bit patterns */
    RF_INT32 = 5,    /* columns that a call names in a row input, and nothing else */
    RF_INT64 = 6     /* the same, and results that are columns */
} rf_dtype;

/* How the products of float32 weights may be computed: bounds on what may be lost, no orders. A GPU computes RF_MATH_BF16 as it does RF_MATH_TF32,
 * and with fewer than 32 inputs both as RF_MATH_F32; a CPU always. */
typedef enum rf_math {
    RF_MATH_F32 = 0,  /* as exact as a plain float32 program on the same data: the root mean square error of the rows against float64 is at
                         most 1.5 times its own, that of logits on a CPU no larger */
    RF_MATH_TF32 = 1, /* operands of 10 to 11 significant bits, float32 sums */
    RF_MATH_BF16 = 2  /* operands of 8 significant bits, float32 sums */
} rf_math;

/* Which rewrites of the chain are allowed. */
typedef enum rf_simplify {
    RF_SIMPLIFY_DEFAULT = 0, /* RF_SIMPLIFY_ALGEBRAIC */
    RF_SIMPLIFY_NONE = 1,    /* every operator is computed as written, several as one where a GPU kernel then has the same bits: see explain */
    RF_SIMPLIFY_EXACT = 2,   /* rewrites that keep every bit, special values included */
    RF_SIMPLIFY_ALGEBRAIC = 3 /* also rewrites that are equal over the reals (a sum of affine columns becomes one dot product) */
} rf_simplify;

/* Where a buffer lives. */
typedef enum rf_memory {
    RF_MEMORY_DEFAULT = 0, /* host */
    RF_MEMORY_HOST = 1,
    RF_MEMORY_DEVICE = 2   /* memory of the model's CUDA device */
} rf_memory;

typedef enum rf_format {
    RF_FORMAT_TEXT = 0,
    RF_FORMAT_JSON = 1
} rf_format;

/* Operators. rf_op_get_info() describes each; lib/ops.def and lib/reductions.def in the source hold the rows, tools/generate.py writes
 * their numbers here. RF_OP_SIN and RF_OP_COS are computed on a CPU alone. RF_OP_TOPK, params[0] of which is k, gives two results: (batch, k)
 * values, and behind them their columns; RF_OP_GATHER (batch, columns of the row input) values. */
typedef enum rf_op_kind {
    RF_OP_NONE = 0,
    RF_OP_LINEAR = 1, /* params: in_features, out_features (none, or both) */
    RF_OP_RESULT = 2, /* no operator: begins a result, see RF_MAX_RESULTS. Without parameters; not in the table of operators */
    RF_OP_MUL = 100, RF_OP_ADD = 101, RF_OP_SUB = 102, RF_OP_DIV = 103, RF_OP_MINIMUM = 104, RF_OP_MAXIMUM = 105,
    RF_OP_NEG = 110, RF_OP_ABS = 111, RF_OP_SQUARE = 112, RF_OP_SQRT = 113, RF_OP_EXP = 114, RF_OP_LOG = 115, RF_OP_RECIPROCAL = 116,
    RF_OP_LOG1P = 117, RF_OP_SIN = 118, RF_OP_COS = 119,
    RF_OP_RELU = 120, RF_OP_LEAKY_RELU = 121, RF_OP_ELU = 122, RF_OP_GELU = 123, RF_OP_GELU_TANH = 124, RF_OP_SILU = 125,
    RF_OP_MISH = 126, RF_OP_SOFTPLUS = 127, RF_OP_SIGMOID = 128, RF_OP_LOGSIGMOID = 129,
    RF_OP_TANH = 130, RF_OP_CLAMP = 131, RF_OP_HARDTANH = 132, RF_OP_HARDSWISH = 133, RF_OP_HARDSIGMOID = 134, RF_OP_SOFTCAP = 135,
    RF_OP_SAVE = 150, RF_OP_ADD_SAVED = 151, RF_OP_MUL_SAVED = 152,
    RF_OP_SUM = 200, RF_OP_MEAN = 201, RF_OP_MAX = 202, RF_OP_MIN = 203, RF_OP_LOGSUMEXP = 204, RF_OP_ENTROPY = 205, RF_OP_ARGMAX = 206,
    RF_OP_ARGMIN = 207, RF_OP_PICK = 208, RF_OP_LOGPROB = 209,
    RF_OP_RANK = 210, RF_OP_TOPK = 211, RF_OP_GATHER = 212, RF_OP_VAR = 213, RF_OP_STD = 214, RF_OP_NORM = 215
} rf_op_kind;

#define RF_MAX_OPS 64        /* operators in a chain, the linear layer included */
#define RF_MAX_OP_PARAMS 2
#define RF_MAX_NAME 32       /* bytes of a vector's name, the terminating NUL included; of a row input's with its # */
#define RF_MAX_RESULTS 16    /* of one chain. RF_OP_RESULT stands before the operators of each result but the first. Before those of the first, too,
                                where it has operators of its own before its reduction: else all before the first reduction is the trunk, which
                                all results share */

#define RF_MAX_TOP 64        /* k of RF_OP_TOPK */

/* One operator of a chain. */
typedef struct rf_op {
    int32_t kind;                    /* an rf_op_kind */
    int32_t num_params;              /* how many of `params` are given; the others take their defaults */
    double params[RF_MAX_OP_PARAMS]; /* NaN in a clamp's bound stands for itself; -inf or inf for no bound */
    char vector[RF_MAX_NAME];        /* name of the per-feature vector that replaces params[0], or "#name": the row input that does, one value per
                                        row, given with each call. Empty if none. num_params is then 0; or, of an operator with a second parameter,
                                        2, and params[0] is not looked at */
} rf_op;

typedef enum rf_op_class {
    RF_CLASS_LINEAR = 0,
    RF_CLASS_ELEMENTWISE = 1,
    RF_CLASS_SAVED = 2,     /* save, add_saved, mul_saved */
    RF_CLASS_REDUCTION = 3
} rf_op_class;

/* What a row input may stand for. */
typedef enum rf_row_use {
    RF_ROW_NONE = 0,
    RF_ROW_NUMBER = 1, /* a number, where a per-feature vector may stand, and behind the reduction, too */
    RF_ROW_COLUMN = 2, /* a column of the layer: RF_INT64 or RF_INT32 */
    RF_ROW_COLUMNS = 3 /* any number of columns of the layer, as many in each row: rf_row_input.columns */
} rf_row_use;

typedef struct rf_op_info {
    size_t size;             /* sizeof(rf_op_info) */
    int32_t kind;
    int32_t op_class;        /* an rf_op_class */
    const char *name;        /* as in chain text; static storage */
    const char *description; /* one line; static storage */
    int32_t num_params, min_params;
    int32_t accepts_vector;  /* 1 if the parameter may be a per-feature vector */
    const char *param_names[RF_MAX_OP_PARAMS];
    double param_defaults[RF_MAX_OP_PARAMS];
    int32_t row_input;       /* an rf_row_use: whether the first parameter may be, or is, a row input "#name" */
    int32_t gives_index;     /* 1 if the result is a column, or a number of columns: RF_INT64 */
} rf_op_info;

/* rf_version: "major.minor.patch" of the library; static storage.
 * rf_status_message: the sentence of a status; static storage, never NULL.
 * rf_last_error: what went wrong in this thread's last failing call; valid until this thread's next call, never NULL. */
const char *rf_version(void);
const char *rf_status_message(rf_status status);
const char *rf_last_error(void);

/* The table of operators, index 0 to rf_op_count() - 1. RF_INVALID_ARGUMENT for an index outside, NULL or a wrong size. */
size_t rf_op_count(void);
rf_status rf_op_get_info(size_t index, rf_op_info *info);

/* Chain text: operators joined by '|', each `name`, `name(1.5, max=2)`, `name(@vector)` or `name(#row_input)`. A comma begins the next result of the
 * same trunk, which is all before the first reduction; operators of a result of its own stand in parentheses where that is not clear:
 * "linear | softcap(30) | logsumexp | exp, max, (abs | mean)", "linear | (abs | max), min". "preset:NAME" is one of the presets
 * (rf_preset_get). rf_chain_parse writes at most `capacity` ops and their number to *num_ops (also when the capacity is too small:
 * RF_BUFFER_TOO_SMALL). rf_chain_format writes the text back, NUL-terminated, into `text` of `size` bytes; *needed (may be NULL)
 * receives the bytes it takes, NUL included. Formatting then parsing gives the same ops, and the numbers bit for bit. */
rf_status rf_chain_parse(const char *text, rf_op *ops, size_t capacity, size_t *num_ops);
rf_status rf_chain_format(const rf_op *ops, size_t num_ops, char *text, size_t size, size_t *needed);

/* The presets, index 0 to rf_preset_count() - 1: name and chain text, in static storage. */
size_t rf_preset_count(void);
rf_status rf_preset_get(size_t index, const char **name, const char **chain);

/* Backends of this build, best first, index 0 to rf_backend_count() - 1. rf_backend_name is NULL for an index outside.
 * rf_backend_available: 1 if it can run on this machine, else 0, and *reason (may be NULL) gets a sentence in static storage: why not; of one
 * that can, "by name alone" if no model runs on it unless rf_config.backend names it, else "". */
size_t rf_backend_count(void);
const char *rf_backend_name(size_t index);
int rf_backend_available(size_t index, const char **reason);

typedef struct rf_model rf_model;

#define RF_BATCH_INVARIANT 1u /* config.flags: a row's bits do not depend on the batch on a GPU either (a CPU always gives that) */

typedef struct rf_config {
    size_t size;           /* sizeof(rf_config) */
    const char *chain;     /* chain text; or NULL, and ops/num_ops instead. Both are copied */
    const rf_op *ops;
    size_t num_ops;
    int64_t in_features;   /* K and N; 0: as the chain says in linear(K, N). Where both say it they must agree. A layer without inputs */
    int64_t out_features;  /* or outputs is written in the chain: linear(0, 5). With total_columns 0 that nothing contradicts is a shard of none */
    int32_t weight_dtype;  /* rf_dtype of W; RF_FLOAT32 by default */
    int32_t x_dtype;       /* rf_dtype of x in rf_model_forward; by default W's. float64 goes with float64 only, the others mix freely. On a GPU W of 16
                              bits with infinities or NaN is kept for x of this type, and x of another type takes longer */
    int32_t y_dtype;       /* rf_dtype of y in rf_model_forward; by default float64 for float64 weights, else float32. A result that is a column is
                              RF_INT64 in any case */
    int32_t math;          /* rf_math */
    int32_t simplify;      /* rf_simplify */
    const char *backend;   /* force one by name (rf_backend_name); NULL: $ROWFOLD_BACKEND if `device` is NULL too, else the best that can run the model */
    const char *device;    /* "cpu", "cuda" (the current device) or "cuda:1"; NULL: any, the best first */
    int32_t threads;       /* CPU threads of one forward; 0: $ROWFOLD_NUM_THREADS, else all cores this process may use */
    uint32_t flags;        /* RF_BATCH_INVARIANT */
    int64_t first_column;  /* the model holds rows first_column to first_column + out_features - 1 of a W of total_columns rows, which other */
    int64_t total_columns; /* models hold the others of; 0 and 0: all of it. See "One layer on many processes" below */
} rf_config;

/* Creates a model: parses and plans the chain and chooses the backend. On success *model owns everything; destroy it with
 * rf_model_destroy. RF_INVALID_ARGUMENT, RF_INVALID_CHAIN, RF_UNSUPPORTED, RF_UNAVAILABLE, RF_OUT_OF_MEMORY. */
rf_status rf_model_create(rf_model **model, const rf_config *config);

/* Frees the model. NULL is fine. No call on it may be in flight. */
void rf_model_destroy(rf_model *model);

/* A per-feature vector of the chain, `length` = out_features values. */
typedef struct rf_vector {
    size_t size;    /* sizeof(rf_vector) */
    const char *name;
    const void *data;
    int64_t length;
    int32_t dtype;  /* rf_dtype; by default W's */
    int32_t memory; /* rf_memory */
} rf_vector;

/* weights.flags */
#define RF_BORROW 1u    /* the kernel may read W where it is; the caller keeps it alive and unchanged until destroy, or until an update */
#define RF_KEEP_FORM 2u /* update alone: the form that W has on a GPU stays, whatever the new values are */

typedef struct rf_weights {
    size_t size;              /* sizeof(rf_weights) */
    const void *weight;       /* W (out_features, in_features) of config.weight_dtype */
    const void *bias;         /* b (out_features), or NULL for none */
    int64_t ld;               /* elements from one row of W to the next; 0: in_features */
    int32_t bias_dtype;       /* rf_dtype of b; by default W's */
    int32_t memory;           /* rf_memory of W and b */
    uint32_t flags;           /* RF_BORROW, RF_KEEP_FORM; the library copies where no kernel can read W as it is */
    uint32_t reserved;        /* 0 */
    const rf_vector *vectors; /* exactly the vectors that the chain names, in any order */
    size_t num_vectors;
    void *stream;             /* cudaStream_t on which device pointers are ready; NULL: the default stream */
} rf_weights;

/* Loads the weights, once. Copies (and packs) what it needs unless RF_BORROW lets it read W in place: the caller's buffers may go
 * when it returns. On a GPU of compute capability 9.0 a copy of 16-bit W is laid out for its kernels, which read it faster than W in
 * place. W and b may hold infinities and NaN. RF_ALREADY_LOADED, RF_INVALID_ARGUMENT (a missing, superfluous or wrongly sized
 * vector too), RF_OUT_OF_MEMORY, RF_DEVICE_ERROR; the model can still be loaded or destroyed after a failure. */
rf_status rf_model_load_weights(rf_model *model, const void *weight, const void *bias, const rf_vector *vectors, size_t num_vectors);
rf_status rf_model_load_weights_ex(rf_model *model, const rf_weights *weights);

/* Other numbers for a model that is loaded: W, b and the vectors in the place of those that are there, of the same shapes, types and chain.
 * Nothing is planned anew, and no memory taken but where W's form changes. What a call computes afterwards has the bits of a model that
 * these weights were loaded into, but with RF_KEEP_FORM.
 *
 * No other call on the model may run meanwhile, in any thread. Weights in device memory are read on weights->stream, and the update is done in
 * its order: calls on that stream before it see the old weights, calls after it the new ones; calls on other streams are for the caller to
 * order (an event). Host memory is the caller's again on return.
 *
 * On a GPU the form of W follows from its values where these decide (float32: two terms of 16 bits, three, or as it is; 16 bits: how x of
 * another type is multiplied; see doc/kernels/accuracy.md). So an update from device memory reads W once, waits for the stream to know what it
 * found, and then changes W without waiting. With RF_KEEP_FORM it does neither: it returns before the work is done, can be captured
 * in a CUDA graph, and leaves graphs that were captured earlier valid; the new values must then be of the kind of those loaded (finite if these
 * were, no rows with magnitudes much further apart), else results lose accuracy, or become NaN where W is infinite. Float64 weights never
 * wait; a sum that was collapsed to a dot product always does. Without RF_KEEP_FORM capture graphs anew after an update. With RF_BORROW a graph
 * goes on reading W where it was.
 *
 * RF_NOT_LOADED, RF_INVALID_ARGUMENT, RF_OUT_OF_MEMORY, RF_DEVICE_ERROR. After the last two the numbers are the old ones, the new ones or some
 * of both: update again, or destroy the model. */
rf_status rf_model_update_weights(rf_model *model, const rf_weights *weights);

/* Weight files: one safetensors file (https://github.com/huggingface/safetensors), or the index of a sharded model (a name that ends in
 * ".json") with its shards beside it. Opening maps the files and validates all that their headers say. The strings and data of an
 * rf_tensor_info belong to the file and go with rf_file_close. A file must not be shortened while it is open; it is checked each time a
 * tensor is asked for. A file may be read by any number of threads. RF_IO_ERROR, RF_INVALID_FILE, RF_OUT_OF_MEMORY, RF_INVALID_ARGUMENT (NULL, an
 * index outside, an unknown name). */
typedef struct rf_file rf_file;

#define RF_MAX_DIMS 8

typedef struct rf_tensor_info {
    size_t size;           /* sizeof(rf_tensor_info) */
    const char *name;
    const char *type_name; /* as in the file: "F32", "BF16", "I64" ... */
    const char *path;      /* the file, or shard, that it is in */
    int32_t dtype;         /* rf_dtype, or 0 for a type that no model takes */
    int32_t num_dims;
    int64_t shape[RF_MAX_DIMS];
    const void *data;      /* not necessarily aligned to its type */
    int64_t bytes;
    int64_t offset;        /* of the data, in bytes from the start of the file `path` */
} rf_tensor_info;

rf_status rf_file_open(rf_file **file, const char *path);
void rf_file_close(rf_file *file); /* NULL is fine */
size_t rf_file_tensor_count(const rf_file *file);
rf_status rf_file_tensor(const rf_file *file, size_t index, rf_tensor_info *info);
rf_status rf_file_find(const rf_file *file, const char *name, rf_tensor_info *info);

/* A vector of the chain and the tensor, of shape (out_features), that holds it. */
typedef struct rf_file_vector {
    size_t size;        /* sizeof(rf_file_vector) */
    const char *vector;
    const char *tensor;
} rf_file_vector;

typedef struct rf_file_names {
    size_t size;                   /* sizeof(rf_file_names) */
    const char *weight;            /* tensor of shape (out_features, in_features) and of config.weight_dtype */
    const char *bias;              /* tensor of shape (out_features), or NULL for none */
    const rf_file_vector *vectors; /* exactly the vectors that the chain names */
    size_t num_vectors;
    int64_t first_column;          /* the model takes rows first_column to first_column + out_features - 1 of tensors that have total_columns */
    int64_t total_columns;         /* rows (bias and vectors: values), and reads no others; 0 and 0: as config's, of a shard those that it holds */
} rf_file_names;

/* rf_model_load_weights from a file, with no copy on the way but the model's own and that of a tensor that the file does not align to its type.
 * Statuses of rf_file_open and rf_model_load_weights. rf_model_load_open_file does so from a file that is open, and leaves it open. */
rf_status rf_model_load_file(rf_model *model, const char *path, const rf_file_names *names);
rf_status rf_model_load_open_file(rf_model *model, const rf_file *file, const rf_file_names *names);

/* rf_model_create and rf_model_load_file in one, the file opened once. What config and chain leave open (config.weight_dtype,
 * in_features, out_features) is the weight tensor's. *model is untouched on an error. Statuses of both. */
rf_status rf_model_create_from_file(rf_model **model, const rf_config *config, const char *path, const rf_file_names *names);

/* Where one result of several goes; of topk first its values, then its columns. No byte of its rows may be one of x, of a row input, of another result or of the weights. */
typedef struct rf_result {
    size_t size;    /* sizeof(rf_result) */
    void *data;     /* (batch, width), or (num_rows, width): rf_model_result_info says the width, 1 for most reductions */
    int64_t ld;     /* elements from one row to the next; 0: dense */
    int32_t dtype;  /* rf_dtype; by default config.y_dtype, or RF_INT64 of a result that is a column, which has no other */
    int32_t memory; /* rf_memory */
} rf_result;

/* A row input "#name" of the chain: one value for each row of x. */
typedef struct rf_row_input {
    size_t size;      /* sizeof(rf_row_input) */
    const char *name; /* without # */
    const void *data; /* (batch), or (batch, columns). A column is one from 0 to total_columns - 1, or what its operators ignore: in host memory another is
                         RF_INVALID_ARGUMENT, with the row in the sentence; a kernel makes NaN of it, and reads nothing wild */
    int64_t length;   /* batch */
    int64_t ld;       /* elements from one row's values to the next; 0: dense */
    int32_t dtype;    /* rf_dtype. Of a number by default float32, or float64 for float64 weights, which goes with float64 only. Of a column
                         RF_INT64, by default, or RF_INT32 */
    int32_t memory;   /* rf_memory */
    int64_t columns;  /* values of each row, and so columns of the results that ask for them: RF_ROW_COLUMNS alone takes others than 1; 0: 1 */
} rf_row_input;

/* One layer on many processes: each holds some columns (rows of W), computes the states of its columns, and the states of all become results.
 * Nothing else has to travel. A column keeps its number: columns that a call names, and results that are columns, are those of the whole layer;
 * one that lies in another shard is no error. Bias and vectors are given for the columns that the model holds.
 *
 * A state is what a row's columns come to for one reduction of the chain: a peak and one or two totals, 2 or 3 words (lib/reductions.def in the
 * source). Where results of a chain can share one they do. States are exchanged for groups of neighbouring columns, at most 16, whose
 * borders depend on total_columns alone:
 *
 *     data:  row 0 | group 0: words of state 0, of state 1 ... | group 1: ... | row 1 | ...       (batch, num_groups, num_words), dense
 *
 * Results are merged from groups in one process, too. So shards that begin and end at borders give the bits of one model with all columns, whatever
 * their number (but for a sum or mean that became one dot product, which a shard never does: see explain; and on one backend, of course).
 * rf_shard_columns cuts a layer so. Other shards give right results, whose last bits depend on how the columns were cut. A shard may be
 * empty: linear(K, 0), or config.out_features 0 where the chain says no sizes. */
typedef struct rf_states {
    size_t size;          /* sizeof(rf_states) */
    void *data;           /* (batch, num_groups, num_words) of rf_states_info's dtype */
    size_t bytes;         /* that data has: batch * row_bytes, or more */
    int64_t first_column; /* rf_states_merge alone: the columns that they are of */
    int64_t num_columns;
    uint64_t chain;       /* rf_states_merge alone: rf_states_info's of the model that wrote them; 0: not known, and not compared */
    int32_t memory;       /* rf_memory. Device memory needs a model on that CUDA device */
    int32_t reserved;     /* 0 */
} rf_states;

typedef struct rf_states_info {
    size_t size;           /* sizeof(rf_states_info) */
    int32_t dtype;         /* rf_dtype of a word: RF_FLOAT64 */
    int32_t num_words;     /* of one group and row */
    int64_t num_groups;    /* that the model has columns of */
    int64_t row_bytes;     /* num_groups * num_words words */
    int64_t first_column, num_columns, total_columns;
    uint64_t chain;        /* the same for two models if the states of both may be merged: of the same chain, in_features, total_columns, type and
                              rewrites. Never 0 */
} rf_states_info;

typedef struct rf_forward_args {
    size_t size;           /* sizeof(rf_forward_args) */
    const void *x;         /* (batch, in_features), never written */
    void *y;               /* (batch, 1), or (batch, out_features) without a reduction. No byte of its rows may be one of x or of the
                              weights; rows of x and y may lie between each other */
    int64_t batch;         /* 0 is fine: nothing is done */
    int64_t ldx, ldy;      /* elements from one row to the next; 0: dense */
    int32_t x_dtype;       /* rf_dtype; by default config.x_dtype */
    int32_t y_dtype;       /* rf_dtype; by default config.y_dtype */
    int32_t x_memory;      /* rf_memory. Device memory needs a model on that CUDA device */
    int32_t y_memory;
    void *workspace;       /* of rf_model_workspace_size(_ex) bytes, 256-byte aligned, on the host for CPU backends and on the device for CUDA
                              ones, for this call alone until it (or its stream) is done; NULL: the call takes and frees that much itself.
                              On CUDA, rows that are in host memory pass through up to 16 MiB more (or what one row takes), which the call always
                              takes itself */
    size_t workspace_size; /* bytes */
    void *stream;          /* cudaStream_t; NULL: the default stream. With device pointers forward returns before the work is done. Captured in a
                              CUDA graph, it is repeated on the same addresses, the model's own too: destroy the model after the graph */
    const rf_result *results;       /* all results of the chain in its order, y then NULL; or NULL, and y is the only one, of the fields above */
    size_t num_results;
    const rf_row_input *row_inputs; /* exactly the row inputs that the chain names, in any order */
    size_t num_row_inputs;
    const rf_states *states;        /* where partial states go, instead of results; y and results are then NULL */
    const int64_t *rows;   /* (num_rows): which rows of x are wanted, from 0 to batch - 1, any of them any number of times. Results then
                              are of these, in this order: y and results have num_rows rows, as if x and the row inputs had been indexed with the
                              list first. The others cost nothing, and what their row inputs hold is not looked at. NULL: all of them. Results,
                              not states, else RF_UNSUPPORTED */
    size_t num_rows;
    int32_t rows_memory;   /* rf_memory of rows. What is in device memory the host does not see: x and all row inputs are then there, too, and a
                              row that x does not have is one of NaN */
} rf_forward_args;

/* y = chain(x). Both forms give the same bits; the first is for one result and no row inputs. Rounds once, when a result is written. RF_NOT_LOADED, RF_INVALID_ARGUMENT, RF_WORKSPACE_TOO_SMALL,
 * RF_OUT_OF_MEMORY, RF_DEVICE_ERROR. Special values follow PyTorch; the same input gives the same bits every time. */
rf_status rf_model_forward(const rf_model *model, const void *x, int64_t batch, void *y);
rf_status rf_model_forward_ex(const rf_model *model, const rf_forward_args *args);

/* What states a model writes, also before its weights are loaded. RF_UNSUPPORTED for a chain without a reduction, whose shards' results stand side
 * by side, and for rank, topk and gather, which need all columns in one model (a shard with them is not created). States of all backends lie
 * alike: those of a GPU may be merged on a CPU. */
rf_status rf_model_states_info(const rf_model *model, rf_states_info *info);

/* Results from the states of all columns: parts in the order of their columns, each beginning where the one before it ends, from 0 to
 * total_columns. `model` is that of any shard, whose weights are not looked at. Of args the results, or y, the row inputs, the
 * batch and, on CUDA, the stream count; what else there is need not be set. Where all pointers are of the device it returns before the work is
 * done, and may be captured in a CUDA graph, as forward may. Statuses of rf_model_forward, and RF_UNSUPPORTED as above. */
rf_status rf_states_merge(const rf_model *model, const rf_states *parts, size_t num_parts, const rf_forward_args *args);

/* The borders of groups: group i holds columns borders[i] to borders[i + 1] - 1. Writes *num_groups + 1 numbers into `borders` of `capacity`;
 * borders may be NULL with capacity 0 to ask. RF_BUFFER_TOO_SMALL writes *num_groups alone. RF_INVALID_ARGUMENT. */
rf_status rf_states_groups(int64_t total_columns, int64_t *borders, size_t capacity, size_t *num_groups);

/* The columns of shard `shard` of num_shards: whole groups, as even as these allow (2, 4, 8 and 16 shards within 1/250 of each other from 64000
 * columns on; more shards than groups leave some empty). RF_INVALID_ARGUMENT. */
rf_status rf_shard_columns(int64_t total_columns, int64_t shard, int64_t num_shards, int64_t *first_column, int64_t *num_columns);

/* Every rank calls it with the same `bytes`; all of them get what each one sent, (num_ranks, bytes), rank 0 first. `send` and `receive` do not
 * overlap and are the library's again on return, whatever is returned. Returns 0; or another number where that failed or took longer than
 * `timeout` seconds, and then *failed may name the rank that it failed for (-1, as it is on entry: not known), and `message` have a
 * NUL-terminated sentence in its message_size bytes. Nothing has to work after that. */
typedef int32_t (*rf_all_gather)(void *user, const void *send, void *receive, size_t bytes, double timeout, int32_t *failed, char *message,
                                 size_t message_size);

/* The same of memory of the model's CUDA device, in the order of `stream`: it may return before the bytes are there. Without a time limit, 0, it
 * should: then nothing waits for the device but the caller. */
typedef int32_t (*rf_all_gather_on_device)(void *user, const void *send, void *receive, size_t bytes, void *stream, double timeout,
                                           int32_t *failed, char *message, size_t message_size);

/* How processes, or threads, that hold the shards of one layer reach each other: the caller's MPI, sockets, shared memory. librowfold_mpi fills this
 * in from an MPI_Comm (rowfold_mpi.h), librowfold_nccl from an ncclComm_t (rowfold_nccl.h). */
typedef struct rf_collective {
    size_t size;              /* sizeof(rf_collective) */
    void *user;               /* handed to the callback */
    int32_t rank;             /* of this process, 0 to num_ranks - 1 */
    int32_t num_ranks;
    double timeout;           /* seconds that each exchange may take, handed to the callback, which has to keep it; 0: no limit */
    rf_all_gather all_gather;
    rf_all_gather_on_device all_gather_on_device; /* for the states of a CUDA model; NULL: they pass through host memory */
} rf_collective;

/* rf_model_forward_ex of a layer whose columns lie on all ranks, each of which calls it, with the model that holds its columns, the same x and the
 * same row inputs: partial states, an exchange, and results, which every rank gets. Shards stand in the order of the ranks.
 *
 * Ranks tell each other whether they can go on before anything is exchanged that the others would wait for: first the shape of the call, then
 * how computing went, then the states, three all_gather in all. So a rank that fails (a wrong argument, no memory) does not leave the others
 * waiting: all of them return its status, with the rank and its sentence in rf_last_error. Ranks that do not fit together (other chains, batches,
 * columns that overlap or are missing) give RF_INVALID_ARGUMENT on all, an exchange that fails RF_COMMUNICATION on those that notice, with the rank
 * that it failed for where the callback says it. A wrong `collective` is the rank's own affair: nothing is exchanged; nor is it where among more than
 * 32 ranks one has no memory for what the others say of themselves.
 *
 * Any number of threads may do so at once, if each has a collective of its own. args->workspace serves the forward; the states of all ranks,
 * batch * num_groups * num_words words for each, are the call's own. It waits for the other ranks, so it cannot be captured in a CUDA graph:
 * states, an exchange of the caller's and rf_states_merge can. */
rf_status rf_model_forward_sharded(const rf_model *model, const rf_collective *collective, const rf_forward_args *args);

/* Bytes of workspace that one forward needs: of `batch` rows for any dtypes of x and y, or of the call that `args` describes, which may need
 * less. A list of rows needs what a batch of num_rows does, and on a GPU more, which the second says: the wanted rows are brought together. It
 * looks at args->batch, x, ldx, x_dtype, x_memory, and num_rows where rows is not NULL; x may be NULL for any address, and is not read. On a GPU
 * x of 16 bits that begins, with each of its rows, at a multiple of 16 bytes needs the least. */
rf_status rf_model_workspace_size(const rf_model *model, int64_t batch, size_t *bytes);
rf_status rf_model_workspace_size_ex(const rf_model *model, const rf_forward_args *args, size_t *bytes);

/* Which ways the values of x and W take, see doc/kernels/accuracy.md: a GPU multiplies float32, and mixed types, as terms of 16 bits, and what
 * these do not represent takes longer. Elsewhere, and where x is multiplied as it is stored, all numbers but `rows` are 0. */
typedef struct rf_ways {
    size_t size;             /* sizeof(rf_ways) */
    int64_t rows;            /* of x */
    int64_t two_level_rows;  /* whose values are so far apart that they take terms of two levels: twice the products, for all rows of their tile */
    int64_t irregular_rows;  /* that terms do not represent: values further apart still; several infinities, of 16-bit x beside float32 W; all, where many rows of W have several infinities */
    int64_t tiles;           /* of rows, as the kernel has them */
    int64_t two_level_tiles; /* with a row of two levels */
    int32_t x_terms;         /* that a value of x is brought to */
    int32_t weight_terms;    /* and one of W: 3 where two would lose too much; 0: as it is stored, or rounded to TF32, and x with it */
    int64_t lone_rows;       /* with a value 2^20 times all others or more, beside float32 W in two terms, or float16 W and float32 x: its products are rounded once */
} rf_ways;

/* Counts the ways that the rows of a call take, without computing its results: a diagnostic, which waits for the stream. Of `args` it looks at
 * what rf_model_workspace_size_ex looks at, but for the lists of rows, and at x's values, the workspace and the stream. RF_NOT_LOADED,
 * RF_INVALID_ARGUMENT, RF_WORKSPACE_TOO_SMALL, RF_OUT_OF_MEMORY, RF_DEVICE_ERROR. */
rf_status rf_model_count_ways(const rf_model *model, const rf_forward_args *args, rf_ways *ways);

typedef struct rf_model_info {
    size_t size;             /* sizeof(rf_model_info) */
    const char *backend;     /* static storage */
    const char *chain;       /* as written; owned by the model */
    int64_t in_features, out_features;
    int64_t output_features; /* the first result's width: 1 with most reductions, out_features without one */
    int32_t weight_dtype, x_dtype, y_dtype, math, simplify;
    int32_t threads;         /* CPU threads of a forward */
    int32_t device;          /* CUDA device index, -1 on a CPU */
    int32_t loaded;
    size_t prepared_bytes;   /* memory held for the weights, host and device together */
    int32_t num_results;     /* elements of args.results. output_features and y_dtype are the first one's */
    int32_t num_row_inputs;
    int64_t first_column, total_columns; /* which columns of how many out_features are; 0 and out_features but in a shard */
} rf_model_info;

rf_status rf_model_get_info(const rf_model *model, rf_model_info *info);

typedef struct rf_result_info {
    size_t size;      /* sizeof(rf_result_info) */
    const char *name; /* the reduction's, of a second one "max_2"; "logits" without one. Owned by the model */
    int64_t width;    /* columns: 1 with most reductions, k of RF_OP_TOPK, out_features without one; 0 of RF_OP_GATHER: those of the call's
                         row input */
    int32_t dtype;    /* rf_dtype that it has by default */
    int32_t kind;     /* rf_op_kind of the reduction, or RF_OP_NONE */
    int32_t part;     /* 1 of the columns that belong to the values before: "topk_indices" behind "topk"; else 0 */
    int32_t row_input; /* 1 + the index of the row input whose column, or columns, the reduction asks for; 0 if none */
} rf_result_info;

typedef struct rf_row_input_info {
    size_t size;      /* sizeof(rf_row_input_info) */
    const char *name; /* without #. Owned by the model */
    int32_t use;      /* an rf_row_use, not RF_ROW_NONE */
    int32_t reserved; /* 0 */
} rf_row_input_info;

/* The results and the row inputs of a model in the chain's order, index 0 to num_results - 1 and num_row_inputs - 1. RF_INVALID_ARGUMENT for an
 * index outside, NULL or a wrong size. */
rf_status rf_model_result_info(const rf_model *model, size_t index, rf_result_info *info);
rf_status rf_model_row_input_info(const rf_model *model, size_t index, rf_row_input_info *info);

/* The plan in words and numbers for one batch size: which operators are fused where, which were removed or replaced and by which rule,
 * which a GPU kernel computes as one, FLOPs, bytes and memory of the fused and the unfused way, the time each should take on this machine.
 * Text or JSON, NUL-terminated, into `text` of `size` bytes; *needed (may be NULL) receives the bytes it takes. RF_BUFFER_TOO_SMALL if it does not fit; text may be NULL with
 * size 0 to ask. Works before the weights are loaded. */
rf_status rf_model_explain(const rf_model *model, int64_t batch, rf_format format, char *text, size_t size, size_t *needed);

/* What this machine's CPU does at best, measured now (about 0.2 s) with `threads` threads (0: all): float32 fused multiply-adds counted as two
 * operations, and bytes a second read from memory. */
rf_status rf_cpu_measure(int threads, double *flops_per_second, double *bytes_per_second);

#ifdef __cplusplus
}
#endif

#endif
