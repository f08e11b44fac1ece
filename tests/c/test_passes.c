/* SPDX-License-Identifier: MIT */
/* Which results of a chain a CUDA kernel gives at once. */
#include <string.h>

#include "check.h"
#include "chain.h"
#include "../../cuda/passes.h"

static rfi_plan plan;
static rfi_cuda_passes passes;
static rf_dtype weights = RF_FLOAT32;

static void take_wide(const char *text, int64_t columns) {
    rfi_chain chain;
    rf_status status = rfi_chain_from_text(text, &chain);
    CHECK(!status, "%s: %s", text, rf_last_error());
    status = rfi_chain_set_size(&chain, 64, columns);
    if (!status) status = rfi_plan_make(&chain, RF_SIMPLIFY_EXACT, &plan, NULL);
    CHECK(!status, "%s: %s", text, rf_last_error());
    rfi_cuda_passes_of(&plan, weights, &passes);
    int seen = 0;
    for (int i = 0; i < passes.count; i++)
        for (int k = 0; k < passes.at[i].num_branches; k++) seen |= 1 << passes.at[i].branches[k];
    for (int b = 0; b < plan.num_branches; b++) seen |= plan.branches[b].gathers << b;
    CHECK(seen == (1 << plan.num_branches) - 1, "%s: some result is of no pass", text);
}

static void take(const char *text) { take_wide(text, 96); }

/* `states` of each pass in turn. */
static void expect(const char *text, int count, const rfi_cuda_states *states) {
    take(text);
    CHECK(passes.count == count, "%s: %d passes, expected %d", text, passes.count, count);
    for (int i = 0; i < count; i++)
        CHECK(passes.at[i].states == states[i], "%s: pass %d has states %d", text, i, (int)passes.at[i].states);
}

#define EXPECT(text, ...)                                            \
    do {                                                             \
        const rfi_cuda_states states[] = {__VA_ARGS__};              \
        expect(text, (int)(sizeof states / sizeof *states), states); \
    } while (0)

/* Of the state of the first pass. */
static void expect_shown(const char *text, int shows) {
    take(text);
    CHECK(passes.at[0].states != RFI_CUDA_PAIRS && passes.at[0].shows == shows, "%s shows %d, expected %d", text,
        passes.at[0].shows, shows);
}

/* Kernels by the columns of a state. */
static const rfi_cuda_choice of_64 = {.tile_columns = 128, .fold_columns = 64, .ahead_columns = 64},
                             of_256 = {.tile_columns = 256, .fold_columns = 256, .ahead_columns = 64},
                             opens = {.tile_rows = 128,
                                 .tile_columns = 256,
                                 .fold_columns = 256,
                                 .ahead_columns = 64,
                                 .opens = 1,
                                 .multiprocessors = 132};

int main(void) {
    const rfi_cuda_states pairs = RFI_CUDA_PAIRS, answers = RFI_CUDA_ANSWER_STATES, search = RFI_CUDA_SEARCH_STATES,
                          other = RFI_CUDA_OTHER_STATES;
    EXPECT("linear", pairs);
    EXPECT("linear | gelu | logsumexp", pairs);
    EXPECT("linear | max", pairs);
    EXPECT("linear | argmax", answers);
    EXPECT("linear | argmin", answers);
    CHECK(passes.at[0].turned, "argmin is the argmax of what has its sign turned");
    EXPECT("linear | min", pairs);
    CHECK(!passes.at[0].turned, "min has a state of its own");
    EXPECT("linear | min, argmin, argmax", answers, answers);
    CHECK(passes.at[0].turned && passes.at[0].num_branches == 2 && !passes.at[1].turned, "min and argmin are one pass");
    EXPECT("linear | div(#t) | min", answers);
    EXPECT("linear | min, logsumexp", pairs, pairs);
    weights = RF_BFLOAT16;
    EXPECT("linear | max", answers);
    EXPECT("linear | min", answers);
    EXPECT("linear | logsumexp", pairs);
    EXPECT("linear | sum", pairs);
    expect_shown("linear | max", 0);
    expect_shown("linear | min", 0);
    weights = RF_FLOAT32;
    expect_shown("linear | pick(#t), max", 0);
    expect_shown("linear | argmin", RFI_CUDA_SHOWS_COLUMN);
    expect_shown("linear | logprob(#t)", RFI_CUDA_SHOWS_TOTAL);
    expect_shown("linear | logsumexp, max", RFI_CUDA_SHOWS_TOTAL);
    expect_shown("linear | logsumexp, argmax", RFI_CUDA_SHOWS_TOTAL | RFI_CUDA_SHOWS_COLUMN);
    expect_shown("linear | entropy", RFI_CUDA_SHOWS_TOTALS);
    expect_shown("linear | entropy, argmax", RFI_CUDA_SHOWS_TOTALS | RFI_CUDA_SHOWS_COLUMN);
    expect_shown("linear | topk(3)", RFI_CUDA_SHOWS_COLUMN);
    expect_shown("linear | logsumexp, topk(3)", RFI_CUDA_SHOWS_TOTAL | RFI_CUDA_SHOWS_COLUMN);
    expect_shown("linear | rank(#t)", 0);
    expect_shown("linear | var", 0);
    EXPECT("linear | div(#t) | sum", other);
    EXPECT("linear | div(#t) | logsumexp", answers);
    EXPECT("linear | sum | div(#t)", pairs);
    EXPECT("linear | div(#t)", other);
    EXPECT(
        "linear | softcap(30) | div(#t) | logprob(#target), argmax, entropy, logsumexp, max, pick(#target)", answers);
    EXPECT("linear | logsumexp, sum, argmax", answers, pairs);
    EXPECT("linear | sum, mean", pairs, pairs);
    EXPECT("linear | logprob(#a), logprob(#b)", answers, answers);
    EXPECT("linear | logsumexp, (abs | max), argmax", answers, pairs);
    EXPECT("linear | logsumexp | exp, logsumexp", answers);
    EXPECT("linear | logprob(#t), argmax, rank(#t), topk(5), logsumexp", search, search);
    CHECK(passes.at[1].role == RFI_CUDA_SEARCHES && passes.at[1].before == 0 && passes.at[1].num_branches == 2 &&
            passes.at[0].num_branches == 3 && passes.at[0].keeps_states && passes.at[0].column == 0,
        "a rank and a topk are searched for together, behind the pass for the others");
    EXPECT("linear | rank(#t)", search, search);
    CHECK(!passes.at[0].num_branches && !passes.at[0].keeps_states, "the first pass of a rank gives nothing itself");
    EXPECT("linear | logprob(#t), rank(#u)", answers, search, search);
    CHECK(passes.at[2].before == 1, "the search begins with the pass that asks for its column");
    EXPECT("linear | topk(1), topk(2), topk(3)", search, search, search, search);
    EXPECT("linear | logsumexp, (abs | topk(2))", pairs, search, search);
    EXPECT("linear | var | exp, std(0), norm", search, search);
    CHECK(passes.at[0].num_branches == 2 && passes.at[1].num_branches == 1, "var and std are of the same squares");
    EXPECT("linear | div(#t) | var", search);
    EXPECT("linear | logsumexp, gather(#t)", pairs);
    take("linear | gather(#t), (exp | gather(#t))");
    CHECK(!passes.count && rfi_cuda_hardest_pass(&passes)->states == RFI_CUDA_PAIRS, "a gather takes no pass");
    take_wide("linear | logprob(#t), rank(#u), topk(20)", 128256);
    CHECK(passes.count == 2 && passes.at[0].column == 0, "with many columns a rank is asked ahead of any pass");
    rfi_cuda_ahead ahead = rfi_cuda_ahead_of(&plan, &passes, 0, &of_256, 8192);
    CHECK(ahead.chunk == 2048 && ahead.sample == 32 * 64 && !ahead.behind, "2048 rows and 32 blocks ahead");
    CHECK(rfi_cuda_ahead_of(&plan, &passes, 0, &of_64, 8).sample == 8192,
        "enough that a list of 20 blocks of 64 has room");
    CHECK(rfi_cuda_room_of(&plan, 20, &of_256) == 5120 && rfi_cuda_room_of(&plan, 1, &of_256) == 32 * 63,
        "room of the lists");
    CHECK(rfi_cuda_ahead_of(&plan, &passes, 0, &of_256, 5).chunk == 5, "no more rows than there are");
    ahead = rfi_cuda_ahead_of(&plan, &passes, 0, &opens, 1024);
    CHECK(ahead.opening == 33 * 256 && !ahead.sample && ahead.chunk == 1024, "two whole waves of tiles open a pass");
    CHECK(rfi_cuda_ahead_of(&plan, &passes, 0, &opens, 200).opening == 66 * 256, "one wave of few rows");
    CHECK(rfi_cuda_ahead_of(&plan, &passes, 0, &opens, 8192).opening == 33 * 256, "16 waves of many");
    take_wide("linear | logsumexp, rank(#t)", 128256);
    CHECK(passes.at[0].states == search, "what is searched beside a logsumexp is no pass of pairs");
    take_wide("linear | rank(#t), topk(64)", 20000);
    ahead = rfi_cuda_ahead_of(&plan, &passes, 0, &of_256, 8192);
    CHECK(ahead.chunk == 2048 && !ahead.sample && ahead.behind == 1, "the sample for 64 would be most of the columns");
    CHECK(rfi_cuda_ahead_of(&plan, &passes, 0, &opens, 1024).opening == 19 * 256, "a quarter at most");
    take_wide("linear | div(#h) | rank(#t)", 128256);
    CHECK(passes.at[0].column == 1 && rfi_cuda_ahead_of(&plan, &passes, 0, &of_256, 8192).chunk == 8192 &&
            rfi_cuda_ahead_of(&plan, &passes, 0, &of_256, 20000).behind == 1,
        "numbers of the rows are read in the whole batch alone");
    take_wide("linear | rank(#t), topk(3)", 2000);
    ahead = rfi_cuda_ahead_of(&plan, &passes, 0, &of_64, 300);
    CHECK(!ahead.chunk && !ahead.sample && ahead.behind == 2, "few columns");
    CHECK(!rfi_cuda_ahead_of(&plan, &passes, 0, &opens, 300).opening, "nor is there an opening");
    take_wide("linear | topk(3), topk(40)", 2000);
    ahead = rfi_cuda_ahead_of(&plan, &passes, 0, &of_64, 300);
    CHECK(ahead.whole == 2048 && !ahead.behind, "where a list has room for all columns these are stored");
    take_wide("linear | rank(#t), topk(40)", 2000);
    ahead = rfi_cuda_ahead_of(&plan, &passes, 0, &of_64, 300);
    CHECK(ahead.whole == 2048 && ahead.behind == 1, "but not for a rank");
    take_wide("linear | logsumexp, topk(8)", 250);
    ahead = rfi_cuda_ahead_of(&plan, &passes, 0, &of_64, 300);
    CHECK(ahead.whole == 256 && !ahead.behind, "a router takes one pass");
    take_wide("linear | topk(64)", 8192);
    CHECK(rfi_cuda_ahead_of(&plan, &passes, 0, &of_256, 300).whole == 8192, "as many as an opening has");
    take_wide("linear | topk(64)", 8193);
    CHECK(!rfi_cuda_ahead_of(&plan, &passes, 0, &of_256, 300).whole, "too many to be looked through");
    rfi_steps pre;
    take("linear | argmin, argmax");
    rfi_cuda_pre_steps(&plan, &plan.branches[passes.at[0].like], &passes.at[0], &pre);
    CHECK(pre.count == 1 && pre.at[0].kind == RF_OP_MUL && pre.at[0].a == -1 && pre.at[0].source < 0,
        "a sign that is turned");
    rfi_cuda_pre_steps(&plan, &plan.branches[passes.at[1].like], &passes.at[1], &pre);
    CHECK(!pre.count, "and one that is not");
    CHECK(rfi_cuda_num_steps(&plan, &passes.at[0]) == 1 && !rfi_cuda_num_steps(&plan, &passes.at[1]), "steps");
    take("linear | max | norm | var(0) | std");
    CHECK(rfi_cuda_num_steps(&plan, &passes.at[0]) == 5, "%d steps", rfi_cuda_num_steps(&plan, &passes.at[0]));
    rfi_step lowered[RFI_CUDA_LOWERED];
    CHECK(rfi_cuda_lower_step(&plan.branches[0].post.at[0], lowered) == 1 && lowered[0].kind == RF_OP_ABS, "norm");
    CHECK(rfi_cuda_lower_step(&plan.branches[0].post.at[1], lowered) == 2 && lowered[0].a == 0, "var(0)");
    CHECK(rfi_cuda_lower_step(&plan.branches[0].post.at[2], lowered) == 2 && lowered[0].a != lowered[0].a, "std");
    take("linear | sum, logprob(#t)");
    CHECK(passes.at[0].column < 0 && passes.at[1].column == 0, "columns %d and %d", passes.at[0].column,
        passes.at[1].column);
    CHECK(rfi_cuda_hardest_pass(&passes) == &passes.at[1], "the second pass is the harder one");
    CHECK(rfi_cuda_state_words(&passes.at[0]) == 2 && rfi_cuda_state_words(&passes.at[1]) == 4, "words of the states");
    take("linear | gelu | (abs | max | exp), min");
    CHECK(rfi_cuda_num_steps(&plan, &passes.at[0]) == 3 && rfi_cuda_num_steps(&plan, &passes.at[1]) == 1,
        "steps %d and %d", rfi_cuda_num_steps(&plan, &passes.at[0]), rfi_cuda_num_steps(&plan, &passes.at[1]));
    rfi_cuda_pre_steps(&plan, &plan.branches[0], NULL, &pre);
    CHECK(pre.count == 2 && pre.at[0].kind == RF_OP_GELU && pre.at[1].kind == RF_OP_ABS, "trunk, then branch");
    return failures != 0;
}
