/* SPDX-License-Identifier: MIT */
/* A forward on many processes: what each says before the others wait for it, and the exchange of states. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "guard.h"
#include "shards.h"
#include "sized.h"

/* What a rank tells all others, of the same size in every version of the library. */
typedef struct card {
    int32_t version, status;
    int64_t batch, in_features, first_column, num_columns, total_columns, row_bytes;
    uint64_t chain;
    char sentence[448];
} card;
_Static_assert(sizeof(card) == 512, "cards of different versions must have the same size");
enum { VERSION = 1, FEW = 32 };

/* All that one call holds. */
typedef struct sharded {
    const rf_model *model;
    const rf_collective *by;
    rf_forward_args args;
    card mine, *cards; /* cards: (num_ranks) */
    int64_t most;      /* bytes that a rank sends, the same from all */
    char *states;      /* (most), and behind them (num_ranks, most) */
    int on_device;     /* they are in memory of the model's device */
    rf_states *parts;  /* (num_ranks) */
} sharded;

static rf_status check_collective(const rf_collective *by) {
    if (!by->all_gather) return rfi_error(RF_INVALID_ARGUMENT, "collective.all_gather is NULL");
    if (by->num_ranks < 1)
        return rfi_error(RF_INVALID_ARGUMENT, "collective.num_ranks is %d; expected 1 or more", by->num_ranks);
    if (by->rank < 0 || by->rank >= by->num_ranks)
        return rfi_error(RF_INVALID_ARGUMENT, "collective.rank is %d; expected 0 to %d", by->rank, by->num_ranks - 1);
    if (!(by->timeout >= 0))
        return rfi_error(RF_INVALID_ARGUMENT, "collective.timeout is %g; expected 0 or more", by->timeout);
    return RF_OK;
}

/* What a callback says of an exchange. */
typedef struct answer {
    int32_t value, failed;
    char message[400];
} answer;

static rf_status judge(const sharded *s, const char *what, answer *a) {
    if (!a->value) return RF_OK;
    char *const message = a->message;
    const int32_t failed = a->failed;
    message[sizeof a->message - 1] = 0;
    char rank[40] = "";
    if (failed >= 0 && failed < s->by->num_ranks) snprintf(rank, sizeof rank, ", for rank %d", (int)failed);
    return rfi_error(RF_COMMUNICATION, "the exchange of %s failed%s: %s", what, rank,
        *message ? message : "the callback gives no reason");
}

static rf_status gather(const sharded *s, const char *what, const void *send, void *receive, size_t bytes) {
    answer a = {.failed = -1};
    a.value =
        s->by->all_gather(s->by->user, send, receive, bytes, s->by->timeout, &a.failed, a.message, sizeof a.message);
    return judge(s, what, &a);
}

static rf_status gather_states(const sharded *s) {
    const size_t bytes = (size_t)s->most;
    if (!s->on_device) return gather(s, "states", s->states, s->states + bytes, bytes);
    answer a = {.failed = -1};
    a.value = s->by->all_gather_on_device(s->by->user, s->states, s->states + bytes, bytes, s->args.stream,
        s->by->timeout, &a.failed, a.message, sizeof a.message);
    return judge(s, "states", &a);
}

static void report(card *mine, rf_status status) {
    mine->version = VERSION;
    mine->status = status;
    if (status) snprintf(mine->sentence, sizeof mine->sentence, "%s", rf_last_error());
}

/* The first rank that cannot go on stops all. */
static rf_status compare_statuses(sharded *s) {
    for (int r = 0; r < s->by->num_ranks; r++) {
        card *c = &s->cards[r];
        if (c->version != VERSION) return rfi_error(RF_COMMUNICATION, "rank %d has another version of rowfold", r);
        c->sentence[sizeof c->sentence - 1] = 0;
        if (c->status < 0 || c->status > RF_COMMUNICATION)
            return rfi_error(RF_COMMUNICATION, "rank %d sent %d, which is no status", r, c->status);
        if (c->status) return rfi_error((rf_status)c->status, "rank %d failed: %s", r, c->sentence);
    }
    return RF_OK;
}

static rf_status compare_shapes(const sharded *s) {
    const card *first = &s->cards[0];
    int64_t next = 0;
    for (int r = 0; r < s->by->num_ranks; r++) {
        const card *c = &s->cards[r];
        if (c->batch != first->batch)
            return rfi_error(RF_INVALID_ARGUMENT, "rank %d has batch %lld, and rank 0 %lld; expected the same x", r,
                (long long)c->batch, (long long)first->batch);
        if (c->in_features != first->in_features || c->total_columns != first->total_columns)
            return rfi_error(RF_INVALID_ARGUMENT,
                "rank %d has in_features %lld and total_columns %lld, and rank 0 %lld and %lld; expected the same", r,
                (long long)c->in_features, (long long)c->total_columns, (long long)first->in_features,
                (long long)first->total_columns);
        if (c->chain != first->chain)
            return rfi_error(RF_INVALID_ARGUMENT,
                "rank %d computes another chain than rank 0, or in another type or with other rewrites", r);
        if (c->first_column != next)
            return rfi_error(RF_INVALID_ARGUMENT, "rank %d begins with column %lld; expected %lld, where rank %d ends",
                r, (long long)c->first_column, (long long)next, r - 1);
        next += c->num_columns;
    }
    if (next != first->total_columns)
        return rfi_error(RF_INVALID_ARGUMENT, "the last rank, %d, ends with column %lld of %lld; expected all of them",
            s->by->num_ranks - 1, (long long)next, (long long)first->total_columns);
    return RF_OK;
}

/* First round: can every rank go on, and do they fit together? */
static rf_status agree(sharded *s, const rf_forward_args *given) {
    rf_status status = s->model ? rfi_sized_read("args", "rf_forward_args", given, &s->args, sizeof s->args)
                                : rfi_error(RF_INVALID_ARGUMENT, "model is NULL");
    s->args.size = sizeof s->args;
    if (!status) status = rfi_forward_check_sharded(s->model, &s->args);
    if (!status) {
        const rfi_plan *plan = &s->model->spec.plan;
        s->mine.batch = s->args.batch;
        s->mine.in_features = plan->in_features;
        s->mine.first_column = plan->columns.first;
        s->mine.num_columns = plan->columns.count;
        s->mine.total_columns = plan->columns.total;
        s->mine.row_bytes = rfi_states_row_bytes(plan, &plan->columns);
        s->mine.chain = rfi_states_chain(s->model);
    }
    report(&s->mine, status);
    status = gather(s, "shapes", &s->mine, s->cards, sizeof s->mine);
    if (!status) status = compare_statuses(s);
    return status ? status : compare_shapes(s);
}

static int32_t memory_of_states(const sharded *s) { return s->on_device ? RF_MEMORY_DEVICE : RF_MEMORY_HOST; }

/* Memory for all that follows, and this rank's states. */
static rf_status compute(sharded *s) {
    int64_t all;
    s->most = 0;
    for (int r = 0; r < s->by->num_ranks; r++)
        if (s->cards[r].row_bytes > s->most) s->most = s->cards[r].row_bytes;
    s->most = rfi_size_mul(s->most, s->args.batch);
    if (s->most < 0 || (all = rfi_size_mul(s->most, (int64_t)s->by->num_ranks + 1)) < 0)
        return rfi_error(RF_OUT_OF_MEMORY, "the states of %d ranks are more than memory can hold", s->by->num_ranks);
    s->parts = calloc((size_t)s->by->num_ranks, sizeof *s->parts);
    const rfi_backend *const backend = s->model->backend;
    s->on_device = backend->take_memory && s->by->all_gather_on_device;
    if (s->on_device) {
        void *memory = NULL;
        rf_status status = backend->take_memory(&s->model->spec, (size_t)all + 1, s->args.stream, &memory);
        if (status) return status;
        s->states = memory;
    } else {
        s->states = calloc(1, (size_t)all + 1);
    }
    if (!s->states || !s->parts)
        return rfi_error(
            RF_OUT_OF_MEMORY, "no memory for %lld bytes of states of %d ranks", (long long)all, s->by->num_ranks);
    const rf_states own = {
        .size = sizeof own, .data = s->states, .bytes = (size_t)s->most, .memory = memory_of_states(s)};
    rf_forward_args args = s->args;
    args.y = NULL;
    args.results = NULL;
    args.num_results = 0;
    args.states = &own;
    return rf_model_forward_ex(s->model, &args);
}

static rf_status merge(const sharded *s) {
    for (int r = 0; r < s->by->num_ranks; r++)
        s->parts[r] = (rf_states){
            .size = sizeof *s->parts,
            .data = s->states + (r + 1) * s->most,
            .bytes = (size_t)s->most,
            .first_column = s->cards[r].first_column,
            .num_columns = s->cards[r].num_columns,
            .chain = s->cards[r].chain,
            .memory = memory_of_states(s),
        };
    return rf_states_merge(s->model, s->parts, (size_t)s->by->num_ranks, &s->args);
}

static rf_status run(sharded *s, const rf_forward_args *given) {
    rf_status status = agree(s, given);
    if (status || !s->args.batch) return status;
    /* The cards of the first round are wanted again. */
    card *const shapes = s->cards, *const statuses = calloc((size_t)s->by->num_ranks, sizeof *statuses);
    card *const receive = statuses ? statuses : shapes;
    status =
        statuses ? compute(s) : rfi_error(RF_OUT_OF_MEMORY, "no memory for statuses of %d ranks", s->by->num_ranks);
    report(&s->mine, status);
    status = gather(s, "statuses", &s->mine, receive, sizeof s->mine);
    s->cards = receive;
    if (!status) status = compare_statuses(s);
    s->cards = shapes;
    free(statuses);
    if (!status && s->most) status = gather_states(s);
    return status ? status : merge(s);
}

rf_status rf_model_forward_sharded(const rf_model *model, const rf_collective *given, const rf_forward_args *args) {
    RFI_GUARDED;
    rf_collective by;
    rf_status status = rfi_sized_read("collective", "rf_collective", given, &by, sizeof by);
    if (!status) status = check_collective(&by);
    if (status) return status;
    /* Of few ranks on the stack: one without memory must be able to say so. */
    card few[FEW];
    card *const many = by.num_ranks > FEW ? calloc((size_t)by.num_ranks, sizeof *many) : NULL;
    sharded s = {.model = model, .by = &by, .cards = many ? many : few};
    if (by.num_ranks > FEW && !many)
        return rfi_error(RF_OUT_OF_MEMORY, "no memory for the shapes of %d ranks", by.num_ranks);
    status = run(&s, args);
    free(many);
    if (!s.on_device) free(s.states);
    else if (s.states) model->backend->give_back(&model->spec, s.args.stream, s.states);
    free(s.parts);
    return status;
}
