/* SPDX-License-Identifier: MIT */
/* Which results of a chain a CUDA kernel gives at once. */
#include <string.h>

#include "check.h"
#include "chain.h"
#include "../../cuda/passes.h"

static rfi_plan plan;
static rfi_cuda_passes passes;

static void take(const char *text) {
    rfi_chain chain;
    rf_status status = rfi_chain_from_text(text, &chain);
    CHECK(!status, "%s: %s", text, rf_last_error());
    status = rfi_chain_set_size(&chain, 64, 96);
    if (!status) status = rfi_plan_make(&chain, RF_SIMPLIFY_EXACT, &plan, NULL);
    CHECK(!status, "%s: %s", text, rf_last_error());
    rfi_cuda_passes_of(&plan, &passes);
    int seen = 0;
    for (int i = 0; i < passes.count; i++)
        for (int k = 0; k < passes.at[i].num_branches; k++) seen |= 1 << passes.at[i].branches[k];
    CHECK(seen == (1 << plan.num_branches) - 1, "%s: some result is of no pass", text);
}

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

int main(void) {
    const rfi_cuda_states pairs = RFI_CUDA_PAIRS, answers = RFI_CUDA_ANSWER_STATES, other = RFI_CUDA_OTHER_STATES;
    EXPECT("linear", pairs);
    EXPECT("linear | gelu | logsumexp", pairs);
    EXPECT("linear | max", pairs);
    EXPECT("linear | argmax", answers);
    EXPECT("linear | argmin", other);
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
    take("linear | sum, logprob(#t)");
    CHECK(passes.at[0].column < 0 && passes.at[1].column == 0, "columns %d and %d", passes.at[0].column,
        passes.at[1].column);
    CHECK(rfi_cuda_hardest_pass(&passes) == &passes.at[1], "the second pass is the harder one");
    CHECK(rfi_cuda_state_words(&passes.at[0]) == 2 && rfi_cuda_state_words(&passes.at[1]) == 4, "words of the states");
    take("linear | gelu | (abs | max | exp), min");
    CHECK(rfi_cuda_num_steps(&plan, &passes.at[0]) == 3 && rfi_cuda_num_steps(&plan, &passes.at[1]) == 1,
        "steps %d and %d", rfi_cuda_num_steps(&plan, &passes.at[0]), rfi_cuda_num_steps(&plan, &passes.at[1]));
    return failures != 0;
}
