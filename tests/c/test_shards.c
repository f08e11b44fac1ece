/* SPDX-License-Identifier: MIT */
/* One layer on many ranks, which are threads: the bits of one model with all columns, whatever the number of shards of
 * whole groups; right results from any others; and errors that reach every rank. */
#include <math.h>
#include <stdio.h>

#include "check.h"
#include "random.h"
#include "ranks.h"

enum { BATCH = 70, K = 5, MOST_COLUMNS = 9001, RESULTS = 8 };

/* Uniform in [-1, 1). */
static double uniform(void) { return (double)(int64_t)next_random() * 0x1p-63; }

typedef struct subject {
    const char *backend, *chain; /* behind linear(K, N) */
    int results, indices;        /* how many; bits that say which are columns */
    rf_dtype dtype;
    int64_t batch, n;
    double x[BATCH * K], weight[MOST_COLUMNS * K], bias[MOST_COLUMNS], scale[MOST_COLUMNS]; /* of `dtype` */
    int64_t target[BATCH];
    float shift[BATCH]; /* a row input */
} subject;

typedef struct answers {
    int64_t of[RESULTS][BATCH]; /* 8 bytes of whatever type */
} answers;

static size_t item_of(rf_dtype dtype) { return dtype == RF_FLOAT64 ? 8 : dtype == RF_FLOAT32 ? 4 : 2; }

static void put(void *to, rf_dtype dtype, int64_t i, double value) {
    if (dtype == RF_FLOAT64) {
        ((double *)to)[i] = value;
        return;
    }
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (dtype == RF_FLOAT32) ((float *)to)[i] = narrow;
    else ((uint16_t *)to)[i] = (uint16_t)(bits >> 16); /* bfloat16 */
}

static void fill(subject *s) {
    for (int64_t i = 0; i < s->batch * K; i++) put(s->x, s->dtype, i, 2 * uniform());
    for (int64_t j = 0; j < s->n * K; j++) put(s->weight, s->dtype, j, 2 * uniform());
    for (int64_t j = 0; j < s->n; j++) put(s->bias, s->dtype, j, uniform()), put(s->scale, s->dtype, j, 1 + uniform());
    for (int64_t i = 0; i < s->batch; i++) {
        s->target[i] = i % 7 == 3 ? -100 : (int64_t)(next_random() % (uint64_t)s->n);
        s->shift[i] = (float)uniform();
    }
}

static rf_model *model_of(const subject *s, int64_t first, int64_t count, int threads) {
    char text[400];
    snprintf(text, sizeof text, "linear(%d, %lld) | %s", K, (long long)count, s->chain);
    const size_t item = item_of(s->dtype);
    rf_model *model = NULL;
    const rf_config config = {.size = sizeof config,
        .chain = text,
        .weight_dtype = s->dtype,
        .simplify = RF_SIMPLIFY_NONE,
        .backend = s->backend,
        .threads = threads,
        .first_column = first,
        .total_columns = s->n};
    const rf_vector scale = {
        .size = sizeof scale, .name = "s", .data = (const char *)s->scale + (size_t)first * item, .length = count};
    CHECK(!rf_model_create(&model, &config) &&
            !rf_model_load_weights(model, (const char *)s->weight + (size_t)first * K * item,
                (const char *)s->bias + (size_t)first * item, &scale, strstr(s->chain, "@s") != NULL),
        "%s: %s", text, rf_last_error());
    return model;
}

/* What a call of the subject gives and takes. */
typedef struct call {
    rf_result results[RESULTS];
    rf_row_input rows[2];
    rf_forward_args args;
} call;

static void prepare(const subject *s, answers *to, call *c) {
    memset(c, 0, sizeof *c);
    memset(to, 0xa5, sizeof *to);
    for (int i = 0; i < s->results; i++) c->results[i] = (rf_result){.size = sizeof *c->results, .data = to->of[i]};
    size_t rows = 0;
    if (strstr(s->chain, "#target"))
        c->rows[rows++] =
            (rf_row_input){.size = sizeof *c->rows, .name = "target", .data = s->target, .length = s->batch};
    if (strstr(s->chain, "#shift"))
        c->rows[rows++] = (rf_row_input){
            .size = sizeof *c->rows, .name = "shift", .data = s->shift, .length = s->batch, .dtype = RF_FLOAT32};
    c->args = (rf_forward_args){.size = sizeof c->args,
        .x = s->x,
        .batch = s->batch,
        .results = c->results,
        .num_results = (size_t)s->results,
        .row_inputs = c->rows,
        .num_row_inputs = rows};
}

typedef struct member {
    const subject *s;
    seat seat;
    double timeout;
    int64_t first, count;
    int fails; /* its own call is wrong */
    rf_status status;
    char sentence[600];
    answers got;
} member;

static void *take_part(void *at) {
    member *m = at;
    rf_model *model = model_of(m->s, m->first, m->count, 1 + m->seat.rank % 2);
    call c;
    prepare(m->s, &m->got, &c);
    if (m->fails) c.args.ldx = 1;
    const rf_collective by = collective_of(&m->seat, m->timeout);
    m->status = rf_model_forward_sharded(model, &by, &c.args);
    snprintf(m->sentence, sizeof m->sentence, "%s", rf_last_error());
    rf_model_destroy(model);
    return NULL;
}

static void run_members(member *members, int ranks) {
    room r;
    pthread_t threads[MOST_RANKS];
    open_room(&r, ranks);
    for (int i = 0; i < ranks; i++) {
        members[i].seat.room = &r, members[i].seat.rank = i;
        CHECK(!pthread_create(&threads[i], NULL, take_part, &members[i]), "no thread");
    }
    for (int i = 0; i < ranks; i++) pthread_join(threads[i], NULL);
    close_room(&r);
}

static member *new_members(const subject *s, int ranks) {
    member *members = calloc((size_t)ranks, sizeof *members);
    if (!members) exit(1);
    for (int i = 0; i < ranks; i++) members[i].s = s, members[i].timeout = 60, members[i].seat.leaves_after = -1;
    return members;
}

static double number(const subject *s, int result, int64_t bits) {
    double wide;
    float narrow;
    memcpy(&wide, &bits, sizeof wide), memcpy(&narrow, &bits, sizeof narrow);
    return s->indices >> result & 1 ? (double)bits : s->dtype == RF_FLOAT64 ? wide : (double)narrow;
}

/* Are they those of `right`, bit for bit or nearly? */
static void compare(const subject *s, const answers *got, const answers *right, int exactly, const char *what) {
    for (int r = 0; r < s->results; r++)
        for (int64_t i = 0; i < s->batch; i++) {
            const size_t item = s->indices >> r & 1 || s->dtype == RF_FLOAT64 ? 8 : 4;
            const char *one = (const char *)got->of[r] + (size_t)i * item,
                       *two = (const char *)right->of[r] + (size_t)i * item;
            int64_t bits = 0, expected = 0;
            memcpy(&bits, one, item), memcpy(&expected, two, item);
            const double a = number(s, r, bits), b = number(s, r, expected);
            const int same = exactly || s->indices >> r & 1
                ? bits == expected
                : a == b || (a != a && b != b) || fabs(a - b) <= 1e-4 * fmax(1, fabs(b));
            CHECK(same, "%s, \"%s\", %s: result %d of row %lld is %.17g, not %.17g", s->backend, s->chain, what, r,
                (long long)i, a, b);
            if (!same) return;
        }
}

static void ask_whole(const subject *s, answers *right) {
    rf_model *model = model_of(s, 0, s->n, 3);
    call c;
    prepare(s, right, &c);
    CHECK(!rf_model_forward_ex(model, &c.args), "%s", rf_last_error());
    rf_model_destroy(model);
}

static void check_members(const subject *s, member *members, int ranks, const answers *right, int exactly) {
    char what[80];
    run_members(members, ranks);
    for (int i = 0; i < ranks; i++) {
        snprintf(what, sizeof what, "%lld columns, rank %d of %d", (long long)s->n, i, ranks);
        CHECK(!members[i].status, "%s: %s", what, members[i].sentence);
        compare(s, &members[i].got, right, exactly, what);
    }
}

/* Shards of whole groups, as the library cuts them and at random, some empty; and shards that begin anywhere. */
static void shards(const subject *s, const answers *right) {
    int64_t borders[17];
    size_t groups;
    CHECK(!rf_states_groups(s->n, borders, 17, &groups), "%s", rf_last_error());
    for (int way = 0; way < 3; way++)
        for (int turn = 1; turn <= 10; turn++) {
            /* The last: more than there are groups, and than a stack has room for what they say. */
            const int ranks = turn < 10 ? turn : 37;
            if (way && ranks % 4 != 1) continue;
            member *members = new_members(s, ranks);
            int64_t next = 0, at = 0;
            for (int i = 0; i < ranks; i++) {
                member *m = &members[i];
                m->first = next;
                if (!way) {
                    CHECK(!rf_shard_columns(s->n, i, ranks, &m->first, &m->count) && m->first == next, "%s",
                        rf_last_error());
                } else if (way == 1) {
                    at = i + 1 == ranks ? (int64_t)groups : at + (int64_t)(next_random() % (groups - (size_t)at + 1));
                    m->count = borders[at] - next;
                } else {
                    m->count = i + 1 == ranks ? s->n - next : (int64_t)(next_random() % (uint64_t)(s->n - next + 1));
                }
                next = m->first + m->count;
            }
            check_members(s, members, ranks, right, way < 2);
            free(members);
        }
}

static const struct {
    const char *chain;
    int results, indices;
} chains[] = {
    {"logsumexp | gelu", 1, 0},
    {"mul(@s) | logsumexp | gelu, max, entropy, argmax, (abs | mean | sub(#shift)), argmin, sum", 7, 0x28},
    {"add(#shift) | logprob(#target, -100), entropy, argmax", 3, 4},
    {"add(@s) | var(0), std(0), norm", 3, 0},
};

static void numbers(const char *backend) {
    static const int64_t sizes[] = {1, 3, 48, 49, 256, 300, 4096, 5000, MOST_COLUMNS};
    static const rf_dtype types[] = {RF_FLOAT32, RF_FLOAT64, RF_BFLOAT16};
    static subject s;
    static answers right;
    for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const rf_dtype dtype = types[(i + c) % 3];
            /* A row input of float32 does not go with float64. */
            if (dtype == RF_FLOAT64 && strstr(chains[c].chain, "#shift")) continue;
            s.backend = backend, s.chain = chains[c].chain, s.results = chains[c].results;
            s.indices = chains[c].indices, s.dtype = dtype, s.n = sizes[i];
            s.batch = !strcmp(backend, "reference") ? 3 : i % 2 ? 2 : BATCH;
            fill(&s);
            ask_whole(&s, &right);
            shards(&s, &right);
        }
}

/* Columns of -inf in whole shards, NaN and +inf in one of them. */
static void special(const char *backend) {
    static subject s;
    static answers right;
    for (int wild = 0; wild < 4; wild++) {
        s.backend = backend, s.chain = chains[1].chain, s.results = 7, s.indices = 0x28;
        s.dtype = RF_FLOAT32, s.n = 1500, s.batch = 2;
        fill(&s);
        for (int64_t j = 0; j < s.n; j++) {
            put(s.scale, s.dtype, j, 1);
            if (j < 600 || wild == 3) put(s.bias, s.dtype, j, -INFINITY);
        }
        if (wild == 1) put(s.bias, s.dtype, 700, NAN);
        if (wild == 2) put(s.bias, s.dtype, 1300, INFINITY), put(s.bias, s.dtype, 100, NAN);
        ask_whole(&s, &right);
        shards(&s, &right);
    }
}

static void same_error(member *members, int ranks, rf_status status, const char *says) {
    run_members(members, ranks);
    for (int i = 0; i < ranks; i++)
        CHECK(members[i].status == status && strstr(members[i].sentence, says), "rank %d: %d: %s, not %d: %s", i,
            (int)members[i].status, members[i].sentence, (int)status, says);
}

/* Four ranks that would do, of which the tests spoil one. */
static member *four(const subject *s) {
    member *members = new_members(s, 4);
    for (int i = 0; i < 4; i++) rf_shard_columns(s->n, i, 4, &members[i].first, &members[i].count);
    return members;
}

static void errors(const char *backend) {
    static subject s, other;
    s.backend = backend, s.chain = chains[0].chain, s.results = 1, s.indices = 0, s.dtype = RF_FLOAT32;
    s.n = 1200, s.batch = 3;
    fill(&s);
    for (int wrong = 0; wrong < 4; wrong++) {
        member *members = four(&s);
        members[wrong].fails = 1;
        char says[80];
        snprintf(says, sizeof says, "rank %d failed: ldx is 1; expected 5 or more", wrong);
        same_error(members, 4, RF_INVALID_ARGUMENT, says);
        free(members);
    }
    const struct {
        const char *chain, *says;
        int64_t batch;
        rf_dtype dtype;
    } others[] = {{"max", "rank 2 computes another chain", 3, RF_FLOAT32},
        {"logsumexp", "rank 2 computes another chain", 3, RF_FLOAT32},
        {"logsumexp | gelu", "rank 2 has batch 2, and rank 0 3", 2, RF_FLOAT32},
        {"logsumexp | gelu", "rank 2 computes another chain", 3, RF_FLOAT64}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        other = s;
        other.chain = others[i].chain, other.batch = others[i].batch, other.dtype = others[i].dtype;
        fill(&other);
        member *members = four(&s);
        members[2].s = &other;
        same_error(members, 4, RF_INVALID_ARGUMENT, others[i].says);
        free(members);
    }
    member *members = four(&s);
    members[1].count--;
    same_error(members, 4, RF_INVALID_ARGUMENT, "rank 2 begins with column 512; expected 511, where rank 1 ends");
    members[1].count++, members[3].count--;
    same_error(members, 4, RF_INVALID_ARGUMENT, "the last rank, 3, ends with column 1199 of 1200");
    members[3].count++;
    /* A rank that is gone before any exchange, and before each of the later ones. */
    static const char *const what[] = {"shapes", "statuses", "states"};
    for (int after = 0; after < 3; after++) {
        char says[80];
        snprintf(says, sizeof says, "the exchange of %s failed, for rank 2: it did not come in time", what[after]);
        for (int i = 0; i < 4; i++) members[i].timeout = 0.3;
        members[2].seat.leaves_after = after;
        same_error(members, 4, RF_COMMUNICATION, says);
    }
    free(members);
}

/* Wrong calls of one rank, which tell nobody. */
static void arguments(void) {
    static subject s;
    static answers got;
    s.chain = chains[0].chain, s.results = 1, s.dtype = RF_FLOAT32, s.n = 600, s.batch = 2;
    fill(&s);
    rf_model *whole = model_of(&s, 0, 600, 1), *part = model_of(&s, 256, 300, 1);
    call c;
    prepare(&s, &got, &c);
#define REFUSED(expression, status, says) \
    CHECK((expression) == (status) && strstr(rf_last_error(), says), "%s", rf_last_error())
    REFUSED(rf_model_forward_ex(part, &c.args), RF_INVALID_ARGUMENT, "the model holds columns 256 to 555 of 600");
    REFUSED(rf_model_forward(part, s.x, 2, &got), RF_INVALID_ARGUMENT, "the model holds columns 256 to 555 of 600");
    rf_states_info info = {.size = sizeof info};
    CHECK(!rf_model_states_info(part, &info), "%s", rf_last_error());
    CHECK(info.dtype == RF_FLOAT64 && info.num_words == 2 && info.num_groups == 2 && info.row_bytes == 32 &&
            info.first_column == 256 && info.num_columns == 300 && info.total_columns == 600 && info.chain,
        "%d words, %lld groups, %lld bytes", info.num_words, (long long)info.num_groups, (long long)info.row_bytes);
    double data[3][2 * 3 * 2];
    rf_states out = {.size = sizeof out, .data = data[0], .bytes = 63};
    rf_forward_args args = {.size = sizeof args, .x = s.x, .batch = 2, .states = &out};
    REFUSED(rf_model_forward_ex(part, &args), RF_INVALID_ARGUMENT, "args.states.bytes is 63; 2 rows of 32 bytes");
    out.bytes = 64, out.data = NULL;
    REFUSED(rf_model_forward_ex(part, &args), RF_INVALID_ARGUMENT, "args.states.data is NULL");
    out.data = (char *)data + 4;
    REFUSED(rf_model_forward_ex(part, &args), RF_INVALID_ARGUMENT, "args.states.data is not aligned");
    out.data = s.x;
    REFUSED(rf_model_forward_ex(part, &args), RF_INVALID_ARGUMENT, "args.states overlaps x");
    out.data = data[0], out.memory = RF_MEMORY_DEVICE;
    REFUSED(rf_model_forward_ex(part, &args), RF_INVALID_ARGUMENT, "args.states.memory is 2");
    out.memory = 0, args.y = &got;
    REFUSED(rf_model_forward_ex(part, &args), RF_INVALID_ARGUMENT, "args.y and args.states");
    args.y = NULL;
    CHECK(!rf_model_forward_ex(part, &args), "%s", rf_last_error());
    rf_model *first = model_of(&s, 0, 256, 1), *last = model_of(&s, 556, 44, 1);
    rf_states parts[3] = {{.size = sizeof out, .data = data[1], .bytes = 96, .num_columns = 256, .chain = info.chain},
        {.size = sizeof out, .data = data[0], .bytes = 64, .first_column = 256, .num_columns = 300},
        {.size = sizeof out, .data = data[2], .bytes = 96, .first_column = 556, .num_columns = 44}};
    args.states = &parts[0];
    CHECK(!rf_model_forward_ex(first, &args), "%s", rf_last_error());
    args.states = &parts[2];
    CHECK(!rf_model_forward_ex(last, &args), "%s", rf_last_error());
    CHECK(!rf_states_merge(part, parts, 3, &c.args), "%s", rf_last_error());
    REFUSED(
        rf_states_merge(part, parts, 2, &c.args), RF_INVALID_ARGUMENT, "the 2 parts have 556 columns; expected all");
    REFUSED(
        rf_states_merge(part, parts + 1, 2, &c.args), RF_INVALID_ARGUMENT, "parts[0] has 300 columns from column 256");
    REFUSED(rf_states_merge(part, NULL, 2, &c.args), RF_INVALID_ARGUMENT, "parts is NULL");
    REFUSED(rf_states_merge(NULL, parts, 3, &c.args), RF_INVALID_ARGUMENT, "model is NULL");
    REFUSED(rf_states_merge(part, parts, 3, &args), RF_INVALID_ARGUMENT, "args.states is not NULL");
    parts[0].chain++;
    REFUSED(
        rf_states_merge(part, parts, 3, &c.args), RF_INVALID_ARGUMENT, "parts[0] was written by a model of another");
    parts[0].chain = 0, parts[2].bytes = 15;
    REFUSED(rf_states_merge(part, parts, 3, &c.args), RF_INVALID_ARGUMENT, "parts[2].bytes is 15");
    parts[2].bytes = 96, c.results[0].data = data[2];
    REFUSED(rf_states_merge(part, parts, 3, &c.args), RF_INVALID_ARGUMENT, "results[0] overlaps parts[2]");
    rf_model_destroy(first), rf_model_destroy(last);
    const int64_t wanted = 1;
    rf_forward_args listed = c.args;
    listed.rows = &wanted, listed.num_rows = 1;
    REFUSED(rf_states_merge(part, parts, 3, &listed), RF_UNSUPPORTED, "args.rows: states are of all rows");
    args.rows = &wanted, args.num_rows = 1;
    REFUSED(rf_model_forward_ex(whole, &args), RF_UNSUPPORTED, "args.rows: states are of all rows");

    static const char *const one_model[] = {"rank(#t)", "topk(2)", "gather(#t)", "max, topk(2)"};
    for (size_t i = 0; i < sizeof one_model / sizeof *one_model; i++) {
        char chain[60], says[60];
        snprintf(chain, sizeof chain, "linear(2, 5) | %s", one_model[i]);
        snprintf(says, sizeof says, "%s", i == 3 ? "topk" : one_model[i]);
        says[strcspn(says, "(")] = 0;
        rf_model *model = NULL;
        rf_config five = {.size = sizeof five, .chain = chain, .total_columns = 9};
        REFUSED(rf_model_create(&model, &five), RF_UNSUPPORTED, strcat(says, " needs all columns"));
        five.total_columns = 0;
        says[strcspn(says, " ")] = 0;
        CHECK(!rf_model_create(&model, &five), "%s", rf_last_error());
        REFUSED(rf_model_states_info(model, &info), RF_UNSUPPORTED, strcat(says, " has no states"));
        REFUSED(rf_states_merge(model, parts, 3, &c.args), RF_UNSUPPORTED, says);
        rf_model_destroy(model);
    }

    static const struct {
        int64_t first, n, total;
    } wrong[] = {{1, 5, 5}, {-1, 5, 9}, {1, 5, 0}, {5, 5, 9}, {0, 5, 4}, {0, 5, -4}, {0, 5, INT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rf_model *model = NULL;
        const rf_config config = {.size = sizeof config,
            .chain = "linear(2, 5) | max",
            .first_column = wrong[i].first,
            .total_columns = wrong[i].total};
        REFUSED(rf_model_create(&model, &config), RF_INVALID_ARGUMENT, "config.first_column is");
    }
    rf_model *logits = NULL;
    const rf_config config = {
        .size = sizeof config, .chain = "linear(2, 2) | neg", .first_column = 3, .total_columns = 5};
    const float w[4] = {1, 2, 3, 4}, x[2] = {1, 10};
    float y[2] = {0};
    CHECK(!rf_model_create(&logits, &config) && !rf_model_load_weights(logits, w, NULL, NULL, 0) &&
            !rf_model_forward(logits, x, 1, y) && y[0] == -21 && y[1] == -43,
        "logits of a shard: %g %g: %s", y[0], y[1], rf_last_error());
    REFUSED(rf_model_states_info(logits, &info), RF_UNSUPPORTED, "folds no columns");
    rf_model_destroy(logits);

    room r;
    open_room(&r, 1);
    seat alone = {&r, 0, -1};
    const rf_collective right = collective_of(&alone, 1);
    rf_collective by = right;
    REFUSED(rf_model_forward_sharded(whole, NULL, &c.args), RF_INVALID_ARGUMENT, "collective is NULL");
    by.all_gather = NULL;
    REFUSED(rf_model_forward_sharded(whole, &by, &c.args), RF_INVALID_ARGUMENT, "collective.all_gather is NULL");
    by = right, by.num_ranks = 0;
    REFUSED(rf_model_forward_sharded(whole, &by, &c.args), RF_INVALID_ARGUMENT, "collective.num_ranks is 0");
    by = right, by.rank = 1;
    REFUSED(rf_model_forward_sharded(whole, &by, &c.args), RF_INVALID_ARGUMENT, "collective.rank is 1");
    by = right, by.timeout = NAN;
    REFUSED(rf_model_forward_sharded(whole, &by, &c.args), RF_INVALID_ARGUMENT, "collective.timeout is nan");
    REFUSED(rf_model_forward_sharded(NULL, &right, &c.args), RF_INVALID_ARGUMENT, "rank 0 failed: model is NULL");
    REFUSED(rf_model_forward_sharded(whole, &right, NULL), RF_INVALID_ARGUMENT, "rank 0 failed: args is NULL");
    REFUSED(rf_model_forward_sharded(part, &right, &c.args), RF_INVALID_ARGUMENT, "begins with column 256");
    REFUSED(rf_model_forward_sharded(whole, &right, &listed), RF_UNSUPPORTED, "rank 0 failed: args.rows: states");
    c.args.batch = 0, c.rows[0].length = 0;
    CHECK(!rf_model_forward_sharded(whole, &right, &c.args), "%s", rf_last_error());
    close_room(&r);
    rf_model_destroy(whole), rf_model_destroy(part);
#undef REFUSED
}

static void borders(void) {
    int64_t at[17], first, count;
    size_t groups = 0;
    for (int64_t n = 0; n < 40000; n += 1 + n / 9) {
        CHECK(!rf_states_groups(n, at, 17, &groups) && groups <= 16 && at[0] == 0 && at[groups] == n, "%lld columns",
            (long long)n);
        for (size_t g = 0; g < groups; g++)
            CHECK(at[g] < at[g + 1] && at[g] % 256 == 0, "%lld columns: border %lld", (long long)n, (long long)at[g]);
        for (int64_t shards = 1; shards < 20; shards++) {
            int64_t next = 0;
            for (int64_t i = 0; i < shards; i++) {
                CHECK(!rf_shard_columns(n, i, shards, &first, &count) && first == next && count >= 0, "%lld columns",
                    (long long)n);
                next = first + count;
            }
            CHECK(next == n, "%lld columns end with %lld", (long long)n, (long long)next);
        }
    }
    CHECK(!rf_states_groups(128256, NULL, 0, &groups) && groups == 16, "%zu groups", groups);
    for (int64_t shards = 2; shards <= 16; shards *= 2) {
        int64_t least = INT64_MAX, most = 0;
        for (int64_t i = 0; i < shards; i++) {
            rf_shard_columns(128256, i, shards, &first, &count);
            least = count < least ? count : least, most = count > most ? count : most;
        }
        CHECK(most - least <= 256, "%lld shards: %lld to %lld", (long long)shards, (long long)least, (long long)most);
    }
    CHECK(rf_states_groups(128256, at, 16, &groups) == RF_BUFFER_TOO_SMALL && groups == 16, "16 do not hold 17");
    CHECK(rf_states_groups(-1, at, 17, &groups) == RF_INVALID_ARGUMENT, "-1 columns");
    CHECK(rf_states_groups(1, at, 17, NULL) == RF_INVALID_ARGUMENT, "nowhere to go");
    CHECK(rf_shard_columns(9, 3, 3, &first, &count) == RF_INVALID_ARGUMENT, "shard 3 of 3");
    CHECK(rf_shard_columns(9, 0, 0, &first, &count) == RF_INVALID_ARGUMENT, "no shards");
    CHECK(rf_shard_columns(9, 0, 1, NULL, &count) == RF_INVALID_ARGUMENT, "nowhere to go");
}

int main(void) {
    borders();
    arguments();
    for (size_t b = 0; b < rf_backend_count(); b++) {
        const char *name = rf_backend_name(b);
        if (!rf_backend_available(b, NULL) || !strncmp(name, "cuda", 4)) continue;
        numbers(name);
        special(name);
        errors(name);
    }
    return failures != 0;
}
