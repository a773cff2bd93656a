// SPDX-License-Identifier: BSD-3-Clause
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "cuda/kernel_args.h"
#include "semaphore/flags.h"
#include "semaphore/hop.h"
#include "semaphore/plan.h"
}

namespace
{

// Work from letters: w wait, p post, c copy, l large copy over a link, L larger, n as large over
// none, X too large for a launch of several, k large and the copy engine's, z copy of no bytes, h
// hold; by flags u push, t take, g go, m move, a arrive; s stage, e unstage, x help, b bell, d
// land.
std::vector<phi_work> work_of(const std::string &letters)
{
    static const std::map<char, phi_step_kind> kinds = {
        {'w', PHI_STEP_WAIT},   {'p', PHI_STEP_POST}, {'h', PHI_STEP_HOLD}, {'u', PHI_STEP_PUSH},
        {'t', PHI_STEP_TAKE},   {'g', PHI_STEP_GO},   {'m', PHI_STEP_MOVE}, {'a', PHI_STEP_ARRIVE},
        {'s', PHI_STEP_STAGE},  {'x', PHI_STEP_HELP}, {'b', PHI_STEP_BELL}, {'d', PHI_STEP_LAND},
        {'e', PHI_STEP_UNSTAGE}};
    static const std::map<char, size_t> sizes = {{'c', 100},           {'l', 8 << 20},
                                                 {'L', (8 << 20) + 1}, {'n', (8 << 20) + 1},
                                                 {'k', (8 << 20) + 1}, {'X', (32 << 20) + 1}};
    std::vector<phi_work> work(letters.size());
    for (size_t i = 0; i < letters.size(); i++) {
        const char c = letters[i];
        work[i].kind = kinds.count(c) ? kinds.at(c) : PHI_STEP_COPY;
        work[i].linked = strchr("lLXk", c) != nullptr;
        work[i].span.size = sizes.count(c) ? sizes.at(c) : 0;
        work[i].engine = c == 'k';
    }
    return work;
}

struct Mode {
    bool kernel_waits, batches, done, fuse = false, gather = false;
    bool together = false, engine = false, engine_behind = false;
};
const Mode KERNEL{true, true, true}, MEMORY{false, true, true}, CAPTURED{true, true, false},
    NO_BATCHES{true, false, true}, FUSED{true, true, true, true},
    GATHERED{true, true, true, true, true, false, true},
    GATHERED_IN_GRAPH{true, true, false, true, true, false, true},
    ENGINE{true, true, true, false, false, true, true, true},
    ENGINE_MEMORY{false, true, true, false, false, true, true, true},
    MIXED{true, true, true, true, true, true, true, false},
    MIXED_UNFUSED{true, true, true, false, true, true, true, false};

const char *letter_of(const phi_piece &piece)
{
    switch (piece.kind) {
    case PHI_PIECE_BATCH:
        return "B(";
    case PHI_PIECE_TRANSFER:
        return "T(";
    case PHI_PIECE_COPIES:
        return "G(";
    case PHI_PIECE_HOP:
        return "H(";
    case PHI_PIECE_ENGINE:
        return "E(";
    default:
        return "K(";
    }
}

// The plan as text: B(items) a batch, K(items) a kernel, C a copy, c a copy behind a wait, T(items)
// a transfer, G(items) copies together, E(items) those for the copy engine, H(items) messages by
// flags or staged ones; + where the number goes. `together` of the items is said beside them.
std::string plan_of(const std::string &letters, const Mode &mode,
                    const std::map<size_t, uint8_t> &together = {})
{
    std::vector<phi_work> work = work_of(letters);
    for (const auto &[i, n] : together)
        work[i].together = n;
    phi_plan plan{};
    plan.work = work.data();
    plan.n = work.size();
    plan.kernel_waits = mode.kernel_waits;
    plan.batches = mode.batches;
    plan.done = mode.done;
    plan.fuse = mode.fuse;
    plan.gather = mode.gather;
    plan.together = mode.together;
    plan.engine[0] = mode.engine;
    plan.engine[1] = mode.engine_behind;
    std::string text;
    phi_piece piece;
    while (phi_plan_next(&plan, &piece)) {
        std::string items;
        for (size_t i = 0; i < piece.count; i++)
            if (letters[piece.first + i] != 'z' && letters[piece.first + i] != 'h')
                items += letters[piece.first + i];
        if (piece.kind == PHI_PIECE_COPY)
            text += piece.behind ? "c" : "C";
        else
            text += letter_of(piece) + (items.size() > 4 ? std::to_string(items.size()) : items) +
                    (piece.done ? "+)" : ")");
    }
    return text;
}

TEST(Plan, SmallCopiesGoTogether)
{
    EXPECT_EQ(plan_of("ccc", GATHERED), "G(ccc+)");
    EXPECT_EQ(plan_of("ccc", KERNEL), "CCCB(+)");
    EXPECT_EQ(plan_of("c", GATHERED), "G(c+)"); // and its number
    EXPECT_EQ(plan_of("zcz", GATHERED), "G(c+)");
    EXPECT_EQ(plan_of("L", GATHERED), "CB(+)");
    EXPECT_EQ(plan_of("l", GATHERED), "G(l+)");
    EXPECT_EQ(plan_of("zlz", GATHERED), "G(l+)");
    EXPECT_EQ(plan_of("lp", GATHERED), "CB(p+)");
    EXPECT_EQ(plan_of("l", GATHERED_IN_GRAPH), "C");
    EXPECT_EQ(plan_of("cp", GATHERED), "CB(p+)"); // the number is another's
    EXPECT_EQ(plan_of("c", GATHERED_IN_GRAPH), "C");
    EXPECT_EQ(plan_of("cc", GATHERED_IN_GRAPH), "G(cc)");
    EXPECT_EQ(plan_of("czzc", GATHERED), "G(cc+)");
    EXPECT_EQ(plan_of("pccp", GATHERED), "B(p)G(cc)B(p+)");
    EXPECT_EQ(plan_of("ccwcc", GATHERED), "G(cc)T(wc)G(c+)"); // alone after the one that waits
    EXPECT_EQ(plan_of("wccc", GATHERED), "T(wc)G(cc+)");
    EXPECT_EQ(plan_of(std::string(121, 'c'), GATHERED), "G(120)G(c+)");
}

// What has no order among itself goes together, whatever its size; the number is another's.
TEST(Plan, TheCopyEngineTakesCopiesTogether)
{
    EXPECT_EQ(plan_of("c", ENGINE), "CB(+)");
    EXPECT_EQ(plan_of("cL", ENGINE), "E(cL)B(+)");
    EXPECT_EQ(plan_of("zczzhcz", ENGINE), "E(cc)B(+)");
    EXPECT_EQ(plan_of("zcz", ENGINE), "CB(+)");
    EXPECT_EQ(plan_of("ccp", ENGINE_MEMORY), "E(cc)B(p+)");
    EXPECT_EQ(plan_of("wccpc", ENGINE_MEMORY), "B(w)E(cc)B(p)cB(+)");
    EXPECT_EQ(plan_of("wcc", ENGINE), "K(w)E(cc)B(+)");
    EXPECT_EQ(plan_of(std::string(257, 'c'), ENGINE), "E(128)E(128)CB(+)");
    EXPECT_EQ(plan_of("umcc", ENGINE), "H(um)E(cc)B(+)");
    EXPECT_EQ(plan_of("kk", KERNEL), "CCB(+)");
}

// Where the copy engine takes one at a time, up to 8 MiB on average; behind a wait, where kernels
// copy in any case, all; and never over what is no link.
TEST(Plan, LargeCopiesGoTogether)
{
    EXPECT_EQ(plan_of("ll", GATHERED), "G(ll+)");
    EXPECT_EQ(plan_of("cclcc", GATHERED), "G(5+)");
    EXPECT_EQ(plan_of("LL", GATHERED), "CCB(+)");
    EXPECT_EQ(plan_of("LLc", GATHERED), "G(LLc+)");
    EXPECT_EQ(plan_of("LLp", GATHERED), "CCB(p+)");
    EXPECT_EQ(plan_of("ll", GATHERED_IN_GRAPH), "G(ll)");
    EXPECT_EQ(plan_of("LL", GATHERED_IN_GRAPH), "CC");
    EXPECT_EQ(plan_of("wLLL", GATHERED), "T(wL)G(LL+)");
    EXPECT_EQ(plan_of("wXXX", GATHERED), "T(wX)T(X)T(X+)");
    EXPECT_EQ(plan_of("nn", GATHERED), "CCB(+)");
    EXPECT_EQ(plan_of("ncc", GATHERED), "CG(cc+)");
    EXPECT_EQ(plan_of("Xll", GATHERED), "CG(ll+)");
}

// Where it takes several, up to 32 MiB in all.
TEST(Plan, TheCopyEngineTakesWhatAKernelWouldDoLater)
{
    EXPECT_EQ(plan_of("LL", MIXED), "G(LL+)");
    EXPECT_EQ(plan_of("llll", MIXED), "G(llll+)");
    EXPECT_EQ(plan_of("lllL", MIXED), "E(lllL)B(+)");
    EXPECT_EQ(plan_of("XX", MIXED), "E(XX)B(+)");
    EXPECT_EQ(plan_of("nn", MIXED), "E(nn)B(+)");
    EXPECT_EQ(plan_of("LLLLcc", MIXED), "E(LLLL)G(cc+)");
    EXPECT_EQ(plan_of("XXczcXX", MIXED), "E(XX)G(cc)E(XX)B(+)");
    EXPECT_EQ(plan_of("XcXX", MIXED), "E(XcXX)B(+)"); // small, and alone
    EXPECT_EQ(plan_of("Xchc", MIXED), "E(Xcc)B(+)");  // no launch goes over a hold
    EXPECT_EQ(plan_of("Xcc", MIXED), "CG(cc+)");
    EXPECT_EQ(plan_of("cX", MIXED), "E(cX)B(+)");
    EXPECT_EQ(plan_of("wXX", MIXED), "T(wX)T(X+)");
    EXPECT_EQ(plan_of("XXwXX", MIXED), "E(XX)T(wX)T(X+)");
    EXPECT_EQ(plan_of("wkk", MIXED_UNFUSED), "K(w)E(kk)B(+)");
    EXPECT_EQ(plan_of("wkX", MIXED_UNFUSED), "K(w)ccB(+)");
}

// A launch is all staged (or bells), or nothing of it is: those are another kernel's.
TEST(Plan, WhatIsStagedAndWhatIsNotAreLaunchesOfTheirOwn)
{
    EXPECT_EQ(plan_of("ugta", FUSED), "H(ugta+)");
    EXPECT_EQ(plan_of("um", CAPTURED), "H(um)");
    EXPECT_EQ(plan_of("sebd", FUSED), "H(sebd+)");
    EXPECT_EQ(plan_of("us", FUSED), "H(u)H(s+)");
    EXPECT_EQ(plan_of("su", FUSED), "H(s)H(u+)");
    EXPECT_EQ(plan_of("gbgb", FUSED), "H(g)H(b)H(g)H(b+)");
    EXPECT_EQ(plan_of("ggssee", FUSED), "H(gg)H(ssee+)");
    EXPECT_EQ(plan_of("mmbbtd", FUSED), "H(mm)H(bb)H(t)H(d+)");
    EXPECT_EQ(plan_of("puhum", FUSED), "B(p)H(u)H(um+)") << "a hold stands between";
    EXPECT_EQ(plan_of("ucu", FUSED), "H(u)T(c)H(u+)");
    EXPECT_EQ(plan_of("uzs", FUSED), "H(u)H(s+)");
    EXPECT_EQ(plan_of("swcp", FUSED), "H(s)T(wcp+)");
}

TEST(Plan, WhatGoesOnTogetherIsOneLaunch)
{
    const size_t k = PHI_HOP_ITEMS;
    EXPECT_EQ(plan_of(std::string(k + 1, 's'), FUSED), "H(16)H(s+)");
    EXPECT_EQ(plan_of(std::string(k - 1, 's') + "sx", FUSED), "H(16)H(x+)");
    EXPECT_EQ(plan_of(std::string(k - 1, 's') + "sx", FUSED, {{k - 1, 2}}), "H(15)H(sx+)");
    EXPECT_EQ(plan_of(std::string(k - 1, 'u') + "sx", FUSED, {{k - 1, 2}}), "H(15)H(sx+)");
}

TEST(Plan, ProgramsOfTheTables)
{
    EXPECT_EQ(plan_of("c", KERNEL), "CB(+)");        // put, get
    EXPECT_EQ(plan_of("p", KERNEL), "B(p+)");        // the passive post
    EXPECT_EQ(plan_of("wcp", KERNEL), "K(w)cB(p+)"); // the active end
    EXPECT_EQ(plan_of("wcp", MEMORY), "B(w)cB(p+)");
    EXPECT_EQ(plan_of("w", KERNEL), "K(w+)"); // complete
    EXPECT_EQ(plan_of("w", MEMORY), "B(w+)");
    EXPECT_EQ(plan_of("wp", KERNEL), "K(wp+)"); // signal, wait
}

TEST(Plan, WhatOnlyHoldsIsNothing)
{
    EXPECT_EQ(plan_of("ch", KERNEL), "CB(+)"); // between two other ranks
    EXPECT_EQ(plan_of("ch", GATHERED), "G(c+)");
    EXPECT_EQ(plan_of("ch", CAPTURED), "C");
    EXPECT_EQ(plan_of("zh", FUSED), "B(+)");
    EXPECT_EQ(plan_of("zh", CAPTURED), "");
    EXPECT_EQ(plan_of("whcp", FUSED), "T(wcp+)");
    EXPECT_EQ(plan_of("whp", MEMORY), "B(wp+)");
}

TEST(Plan, ATransferIsOneLaunch)
{
    EXPECT_EQ(plan_of("wcp", FUSED), "T(wcp+)");
    EXPECT_EQ(plan_of("c", FUSED), "CB(+)") << "nothing waits";
    EXPECT_EQ(plan_of("wzp", FUSED), "K(wp+)") << "nothing is copied";
    EXPECT_EQ(plan_of("wp", FUSED), "K(wp+)");
    EXPECT_EQ(plan_of("zwcz", FUSED), "T(wc+)");
    // A group: a post, a transfer, a complete.
    EXPECT_EQ(plan_of("pwcpw", FUSED), "T(5+)");
    EXPECT_EQ(plan_of("pcw", FUSED), "B(p)CK(w+)");
    // Several transfers: what follows one goes with it, up to the next copy.
    EXPECT_EQ(plan_of("wcpwcp", FUSED), "T(wcpw)T(cp+)");
}

TEST(Plan, ATransferTakesAsManyItemsAsFit)
{
    const size_t k = PHI_BRACE_ITEMS;
    EXPECT_EQ(plan_of(std::string(k, 'w') + "cp", FUSED), "T(17)B(p+)");
    EXPECT_EQ(plan_of("wc" + std::string(k, 'p'), FUSED), "T(17)B(p+)");
    EXPECT_EQ(plan_of(std::string(k + 1, 'w') + "cp", FUSED), "K(16)T(wcp+)");
    EXPECT_EQ(plan_of(std::string(2 * k - 1, 'p') + "wcp", FUSED), "K(16)T(17)B(p+)");
}

TEST(Plan, CapturedWorkHasNoNumber)
{
    EXPECT_EQ(plan_of("wcp", CAPTURED), "K(w)cB(p)");
    EXPECT_EQ(plan_of("c", CAPTURED), "C");
    EXPECT_EQ(plan_of("z", CAPTURED), "");
}

TEST(Plan, WithoutMemoryOperationsEverythingIsAKernel)
{
    EXPECT_EQ(plan_of("wcp", NO_BATCHES), "K(w)cK(p+)");
    EXPECT_EQ(plan_of("c", NO_BATCHES), "CK(+)");
}

TEST(Plan, CopiesOfNoBytesVanish)
{
    EXPECT_EQ(plan_of("wzp", KERNEL), "K(wp+)");
    EXPECT_EQ(plan_of("z", KERNEL), "B(+)");
    EXPECT_EQ(plan_of("zzc", MEMORY), "CB(+)");
    EXPECT_EQ(plan_of("wzcz", MEMORY), "B(w)cB(+)");
    EXPECT_EQ(plan_of("pz", MEMORY), "B(p+)");
}

TEST(Plan, WaitsOfOneBraceDecideOnlyForThatBrace)
{
    EXPECT_EQ(plan_of("pwcpcp", KERNEL), "K(pw)cB(p)cB(p+)");
}

TEST(Plan, LongBracesAreSplit)
{
    const size_t k = PHI_BRACE_ITEMS;
    EXPECT_EQ(plan_of(std::string(k, 'w'), KERNEL), "K(16+)");
    EXPECT_EQ(plan_of(std::string(k + 1, 'w'), KERNEL), "K(16)K(w+)");
    EXPECT_EQ(plan_of(std::string(PHI_BATCH_MAX - 1, 'p'), MEMORY),
              "B(" + std::to_string(PHI_BATCH_MAX - 1) + "+)");
    const std::string most = std::to_string(PHI_BATCH_MAX);
    EXPECT_EQ(plan_of(std::string(PHI_BATCH_MAX, 'p'), MEMORY),
              "B(" + most + ")B(+)"); // that is all that a batch takes
    EXPECT_EQ(plan_of(std::string(PHI_BATCH_MAX + 1, 'p'), MEMORY), "B(" + most + ")B(p+)");
    EXPECT_EQ(plan_of(std::string(PHI_BATCH_MAX, 'p'), CAPTURED), "B(" + most + ")");
}

phi_policy policy_of(int wait, int method, int memory_waits = 0)
{
    phi_config config{};
    config.wait = wait;
    config.method = method;
    config.kernel_waits = 64;
    config.graph_branches = 16;
    config.memory_operation_streams = memory_waits;
    config.copy_blocks = 64;
    phi_policy policy = phi_policy_of(&config);
    policy.kernels = policy.batches = true;
    return policy;
}

TEST(Policy, WaitsByKernelUnlessTheDeviceIsShared)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO, 16);
    phi_waiting others{};
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 1);
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 0);
    others.memory_operations = 15;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 0);
    others.memory_operations = 16;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 1)
        << "beyond the limit a kernel, on a shared GPU too";
}

TEST(Policy, UnlessAskedNoStreamWaitsByMemoryOperation)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    phi_waiting others{};
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 1);
}

TEST(Policy, AtMostSoManyKernelsWait)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    phi_waiting others{};
    others.kernels = 47;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 1);
    others.kernels = 48;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), -EAGAIN) << "the others are left to graphs";
    EXPECT_EQ(phi_wait_mode(&policy, &others, true), 1) << "a graph may not run";
    policy.graph_branches = 0;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 1);
    EXPECT_EQ(phi_wait_mode(&policy, &others, true), -EAGAIN);
    others.kernels = 64;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), -EAGAIN);
    policy.graph_branches = 100;
    EXPECT_EQ(phi_eager_waits(&policy), 1u);
    policy.wait = PHI_WAIT_MEMORY_OPERATION;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 0);
}

TEST(Policy, AForcedWaitPassesTheLimits)
{
    phi_policy policy = policy_of(PHI_WAIT_MEMORY_OPERATION, PHI_METHOD_AUTO);
    phi_waiting others{};
    others.memory_operations = 100;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 0);
    policy.wait = PHI_WAIT_KERNEL;
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 1);
}

TEST(Policy, WhatTheDeviceHasNotIsNotUsed)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    phi_waiting others{};
    policy.kernels = false;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 0);
    EXPECT_FALSE(phi_copy_mode(&policy, true));
    policy.kernels = true;
    policy.batches = false;
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others, false), 1);
}

TEST(Policy, CopyKernelTakesOverBehindWaits)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    EXPECT_FALSE(phi_copy_mode(&policy, false));
    EXPECT_TRUE(phi_copy_mode(&policy, true));
    policy.method = PHI_METHOD_CE;
    EXPECT_FALSE(phi_copy_mode(&policy, true));
    policy.method = PHI_METHOD_COPY_KERNEL;
    EXPECT_TRUE(phi_copy_mode(&policy, false));
}

TEST(Policy, BlocksOfACopy)
{
    const size_t block = (size_t)PHI_COPY_THREADS * 64;
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    EXPECT_EQ(phi_copy_blocks(&policy, 1), 1u);
    EXPECT_EQ(phi_copy_blocks(&policy, block), 1u);
    EXPECT_EQ(phi_copy_blocks(&policy, block + 1), 2u);
    EXPECT_EQ(phi_copy_blocks(&policy, SIZE_MAX), 64u);
    // Several share what one would have, each by its size.
    EXPECT_EQ(phi_copies_blocks(&policy, 4 * block, 8 * block), 4u);
    EXPECT_EQ(phi_copies_blocks(&policy, 64 * block, 128 * block), 32u);
    EXPECT_EQ(phi_copies_blocks(&policy, 100 * block, 400 * block + 1), 16u);
    EXPECT_EQ(phi_copies_blocks(&policy, 1, 128 * block), 1u);
    EXPECT_EQ(phi_copies_blocks(&policy, size_t(32) << 20, uint64_t(120) << 25), 1u);
    policy.copy_blocks = 16;
    EXPECT_EQ(phi_copy_blocks(&policy, SIZE_MAX), 16u);
    EXPECT_EQ(phi_hand_blocks(&policy, 1, SIZE_MAX), 16u);
}

// One launch of some work, as letters or items; what the others have is not of it.
struct Launch {
    phi_hop_args args{};
    phi_grid grid{};
};

Launch launch_of(const std::vector<phi_work> &work, phi_hop_part part, bool captured = true)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    Launch launch;
    policy.blocks = 132;
    launch.grid = phi_hop_fill(work.data(), work.size(), &policy, captured, part, &launch.args);
    return launch;
}

phi_work hop(phi_step_kind kind, size_t size)
{
    phi_work work{};
    const bool lines = kind == PHI_STEP_PUSH || kind == PHI_STEP_TAKE;
    work.kind = kind;
    work.span.size = size;
    work.lane.wide = lines && size > PHI_WIDE_LEAST;
    return work;
}

// What the first block of a launch does, and behind a bar what hands do: letters as above, r for
// room, l for leave, f for the first line of a message.
std::string items_of(const Launch &launch)
{
    static const char letters[] = "utgmarlf";
    std::string text;
    for (uint32_t i = 0; i < launch.args.count; i++) {
        text += i == launch.args.waits ? "|" : "";
        text += letters[launch.args.items[i].kind];
    }
    return launch.grid.blocks == 0 ? "-" : text;
}

std::string parts_of(const std::vector<phi_work> &work, bool captured = true)
{
    std::string text;
    for (int part = 0; part < PHI_HOP_PARTS; part++)
        text += (part ? " " : "") + items_of(launch_of(work, (phi_hop_part)part, captured));
    const phi_hop_part last = phi_hop_last(work.data(), work.size(), captured);
    EXPECT_GT(launch_of(work, last, captured).grid.blocks, 0u);
    for (int part = last + 1; part < PHI_HOP_PARTS; part++)
        EXPECT_EQ(launch_of(work, (phi_hop_part)part, captured).grid.blocks, 0u);
    return text;
}

// A long message by a ring has a lead and hands; hands of a push that is alone are in both
// launches.
TEST(Policy, LongMessagesHaveALeadAndHands)
{
    const auto drawn = [](phi_step_kind kind) {
        phi_work work = hop(kind, 3 << 20);
        work.lane.ring = PHI_RING_DRAWN;
        return work;
    };
    const phi_work push = drawn(PHI_STEP_PUSH), take = drawn(PHI_STEP_TAKE);
    EXPECT_EQ(parts_of({push}), "r|u |u -");
    EXPECT_EQ(parts_of({take}), "f |t -");
    EXPECT_EQ(parts_of({push, take}), "rf |ut -");
    EXPECT_EQ(parts_of({push}, false), "r|u |u -");
    const auto hands = [](const Launch &launch) {
        return launch.args.items[launch.args.count - 1].hands;
    };
    EXPECT_EQ(hands(launch_of({push}, PHI_HOP_FIRST)), PHI_HANDS_FIRST);
    EXPECT_EQ(hands(launch_of({push}, PHI_HOP_SECOND)), PHI_HANDS_SECOND);
    EXPECT_EQ(hands(launch_of({push, take}, PHI_HOP_SECOND)), PHI_HANDS_ONLY);
    EXPECT_EQ(launch_of({push}, PHI_HOP_FIRST).grid.blocks, 17u);
    EXPECT_EQ(launch_of({take}, PHI_HOP_FIRST).grid.blocks, 1u);
    EXPECT_EQ(launch_of({take}, PHI_HOP_FIRST).grid.threads, 32u);
    // The lead has a warp for each; all together have half of the device.
    const std::vector<phi_work> most(PHI_LONG_ITEMS, push);
    EXPECT_EQ(launch_of(most, PHI_HOP_FIRST).grid.threads, unsigned{PHI_LONG_THREADS});
    EXPECT_EQ(launch_of(most, PHI_HOP_SECOND).grid.blocks, 64u);
    EXPECT_EQ(launch_of(most, PHI_HOP_SECOND).grid.kernel, PHI_KERNEL_RING_LONG);
}

TEST(Plan, TakesAsManyLongMessagesAsALeadHasWarps)
{
    phi_work push = hop(PHI_STEP_PUSH, 3 << 20), small = hop(PHI_STEP_PUSH, 3 << 10);
    push.lane.ring = PHI_RING_DRAWN;
    small.lane.ring = PHI_RING_SHORT;
    std::vector<phi_work> work(PHI_LONG_ITEMS + 2, push);
    work.push_back(small);
    phi_plan plan{};
    plan.work = work.data();
    plan.n = work.size();
    plan.kernel_waits = true;
    phi_piece piece;
    for (const size_t count : {size_t{PHI_LONG_ITEMS}, size_t{2}, size_t{1}}) {
        ASSERT_TRUE(phi_plan_next(&plan, &piece));
        EXPECT_EQ(piece.count, count);
    }
    EXPECT_FALSE(phi_plan_next(&plan, &piece));
}

// One block of a stream waits: what does not fit into that has hands, in a launch behind its wait.
TEST(Policy, OneBlockOfALaunchWaits)
{
    const size_t little = PHI_WIDE_ALONE, more = little + 1, mib = 1 << 20;
    const auto push = [](size_t size) { return hop(PHI_STEP_PUSH, size); };
    const auto take = [](size_t size) { return hop(PHI_STEP_TAKE, size); };
    const phi_work go = hop(PHI_STEP_GO, mib), arrive = hop(PHI_STEP_ARRIVE, mib);
    const phi_work copy = hop(PHI_STEP_MOVE, mib);
    EXPECT_EQ(parts_of({push(8)}), "- u -");
    EXPECT_EQ(parts_of({take(8)}), "- t -");
    EXPECT_EQ(parts_of({push(little)}), "- u -");
    EXPECT_EQ(parts_of({take(little)}), "- t -");
    EXPECT_EQ(parts_of({go}), "- g -");
    EXPECT_EQ(parts_of({arrive}), "- a -");
    EXPECT_EQ(parts_of({hop(PHI_STEP_MOVE, little)}), "- m -");
    EXPECT_EQ(parts_of({push(more)}), "r|u - -") << "the first block does what is left";
    EXPECT_EQ(parts_of({push(128 << 10)}), "r|u - -");
    EXPECT_EQ(parts_of({push((128 << 10) + 1)}), "r|u |u -");
    EXPECT_EQ(parts_of({copy}), "l|m |m -");
    EXPECT_EQ(parts_of({take(more)}), "- f |t");
    EXPECT_EQ(parts_of({take(128 << 10)}, false), "- t -") << "a second launch takes a host longer";
    EXPECT_EQ(parts_of({take((128 << 10) + 1)}, false), "- f |t");
    EXPECT_EQ(parts_of({take(128 << 10), take(8)}, false), "- ft |t")
        << "one block has enough to do";
    // Of a group what pushes and copies comes before what waits for the peers' pushes and copies.
    EXPECT_EQ(parts_of({push(8), take(8)}), "- ut -");
    EXPECT_EQ(parts_of({push(more), take(8)}), "r|u t|u -");
    EXPECT_EQ(parts_of({go, copy, arrive}), "gl|m a|m -");
    EXPECT_EQ(parts_of({take(mib), push(8), push(mib), take(8), arrive, go}), "urg|u fta|u |t");
    EXPECT_EQ(parts_of({take(mib), take(mib), push(8)}), "- ffu |tt");
}

// The kinds of launch of which the items are, and its blocks and threads.
TEST(Policy, HandsAndTheirPlaces)
{
    const phi_work push = hop(PHI_STEP_PUSH, 1 << 20), copy = hop(PHI_STEP_MOVE, 16 << 20);
    const phi_work take = hop(PHI_STEP_TAKE, 1 << 20);
    Launch launch = launch_of({push}, PHI_HOP_FIRST);
    EXPECT_EQ(launch.grid.blocks, 65u);
    EXPECT_EQ(launch.grid.threads, 256u);
    EXPECT_EQ(launch.args.items[1].first, 1u);
    EXPECT_EQ(launch.args.items[1].blocks, 64u);
    EXPECT_EQ(launch.args.items[1].hands, PHI_HANDS_FIRST);
    launch = launch_of({push}, PHI_HOP_SECOND);
    EXPECT_EQ(launch.grid.blocks, 64u);
    EXPECT_EQ(launch.args.items[0].hands, PHI_HANDS_SECOND);
    EXPECT_EQ(launch.args.waits, 0u);
    launch = launch_of({hop(PHI_STEP_PUSH, 64 << 10)}, PHI_HOP_FIRST);
    EXPECT_EQ(launch.grid.blocks, 17u);
    EXPECT_EQ(launch.args.items[0].hands, PHI_HANDS_ONLY);
    EXPECT_EQ(launch.args.items[1].hands, PHI_HANDS_ONLY);
    EXPECT_EQ(launch.args.items[0].blocks, 16u) << "the shares that the first block looks for";
    EXPECT_EQ(launch.args.items[0].fence, PHI_FENCE);
    launch = launch_of({take}, PHI_HOP_SECOND);
    EXPECT_EQ(launch.grid.blocks, 1u);
    EXPECT_EQ(launch.grid.threads, 32u);
    launch = launch_of({take}, PHI_HOP_THIRD);
    EXPECT_EQ(launch.grid.blocks, 64u);
    // All of a launch leave half of the device to others.
    launch = launch_of({push, copy}, PHI_HOP_FIRST);
    EXPECT_EQ(launch.grid.blocks, 67u);
    EXPECT_EQ(launch.args.items[2].blocks, 33u);
    EXPECT_EQ(launch.args.items[3].first, 34u);
    std::vector<phi_work> many(PHI_HOP_ITEMS, copy);
    launch = launch_of(many, PHI_HOP_FIRST);
    EXPECT_EQ(launch.args.count, unsigned(PHI_HOP_ENTRIES));
    EXPECT_EQ(launch.grid.blocks, 1 + 4u * PHI_HOP_ITEMS);
}

// Each item of the first block has warps of its own; a block has 16 barriers, one for all.
TEST(Policy, ItemsOfTheFirstBlockShareItsWarps)
{
    for (size_t n = 1; n <= PHI_HOP_ITEMS; n++) {
        Launch launch =
            launch_of(std::vector<phi_work>(n, hop(PHI_STEP_TAKE, 8192)), PHI_HOP_SECOND);
        unsigned warps = 0, barriers = 0;
        for (uint32_t i = 0; i < n; i++) {
            EXPECT_EQ(launch.args.items[i].first, warps) << n;
            EXPECT_GE(launch.args.items[i].blocks, 1u) << n;
            warps += launch.args.items[i].blocks;
            barriers += launch.args.items[i].blocks > 1;
        }
        EXPECT_EQ(launch.grid.threads, 32 * warps) << n;
        EXPECT_LE(warps, 16u) << n;
        EXPECT_LE(barriers, 15u) << n;
        EXPECT_EQ(launch.grid.blocks, 1u) << n;
    }
    Launch launch = launch_of({hop(PHI_STEP_ARRIVE, 8), hop(PHI_STEP_PUSH, 8)}, PHI_HOP_SECOND);
    EXPECT_EQ(launch.args.items[0].blocks, 4u) << "a thread for each word";
    EXPECT_EQ(launch.args.items[1].blocks, 2u);
}

// A hand's share is that of the threads it has: in both launches the same.
TEST(Policy, HandsOfBothLaunchesHaveAsManyThreads)
{
    const phi_work push = hop(PHI_STEP_PUSH, 64 << 10), copy = hop(PHI_STEP_MOVE, 2 << 20);
    const phi_work arrive = hop(PHI_STEP_ARRIVE, 1 << 20), take = hop(PHI_STEP_TAKE, 8192);
    for (const std::vector<phi_work> &work :
         {std::vector<phi_work>{copy, arrive, arrive, arrive}, std::vector<phi_work>(9, push),
          std::vector<phi_work>(16, copy), std::vector<phi_work>{push, take, take},
          std::vector<phi_work>{hop(PHI_STEP_MOVE, 17 << 20), push, arrive},
          std::vector<phi_work>{push, hop(PHI_STEP_PUSH, 8192), hop(PHI_STEP_PUSH, 8192), take}}) {
        const Launch first = launch_of(work, PHI_HOP_FIRST),
                     second = launch_of(work, PHI_HOP_SECOND);
        EXPECT_EQ(first.grid.threads, second.grid.threads) << work.size();
        EXPECT_LE(first.grid.threads, unsigned(PHI_SPREAD_THREADS));
    }
}

// Of large copies warps draw what they copy: few blocks will do, but for what is not aligned alike.
TEST(Policy, LargeCopiesTakeFewBlocks)
{
    const auto blocks_of = [&](size_t size, uintptr_t apart) {
        phi_work copy = hop(PHI_STEP_MOVE, size);
        copy.span.source = reinterpret_cast<void *>(static_cast<uintptr_t>(0x10000000));
        copy.span.destination = reinterpret_cast<void *>(0x20000000 + apart);
        return launch_of({copy}, PHI_HOP_SECOND).args.items[0].blocks;
    };
    const size_t most = 24 << 20;
    EXPECT_EQ(blocks_of(most, 0), 64u);
    EXPECT_EQ(blocks_of(most + 1, 0), 32u);
    EXPECT_EQ(blocks_of(most + 1, 64), 32u);
    EXPECT_EQ(blocks_of(most + 1, 4), 64u);
    EXPECT_EQ(blocks_of(most + 1, 1), 64u);
}

// What a launch writes for others is there before its number. A take writes for nobody else but
// into host memory; who waits for hands writes nothing.
TEST(Policy, NumbersComeBehindWhatOthersRead)
{
    const struct {
        phi_step_kind kind;
        uint8_t signal, host_destination;
        uint32_t fence;
    } rows[] = {
        {PHI_STEP_PUSH, 0, 0, 1},   {PHI_STEP_TAKE, 0, 0, 0},  {PHI_STEP_TAKE, 1, 1, 1},
        {PHI_STEP_GO, 0, 0, 0},     {PHI_STEP_MOVE, 0, 0, 1},  {PHI_STEP_ARRIVE, 0, 0, 0},
        {PHI_STEP_ARRIVE, 1, 0, 0}, {PHI_STEP_STAGE, 0, 0, 1}, {PHI_STEP_UNSTAGE, 0, 0, 1},
    };
    for (const auto &row : rows) {
        phi_work work = hop(row.kind, 8);
        work.lane.signal = row.signal;
        work.lane.peer = PHI_STAGE_LIKE(4096, 1);
        work.span.host_destination = row.host_destination;
        EXPECT_EQ(launch_of({work}, PHI_HOP_SECOND).args.items[0].fence, row.fence)
            << int(row.kind) << int(row.signal);
        work.lane.fence_before = 1;
        EXPECT_EQ(launch_of({work}, PHI_HOP_SECOND).args.items[0].fence,
                  row.fence | PHI_FENCE_BEFORE);
    }
    const Launch launch = launch_of({hop(PHI_STEP_PUSH, 1 << 20)}, PHI_HOP_FIRST);
    EXPECT_EQ(launch.args.items[0].fence, 0u);
    EXPECT_EQ(launch.args.items[1].fence, PHI_FENCE);
}

// The kernel with all that the items need and no more, with no more threads than it is made for.
TEST(Policy, ALaunchIsOfTheSmallestKernelThatServes)
{
    const struct {
        phi_step_kind kind;
        size_t size;
        phi_hop_part part;
        phi_kernel alone, beside; // beside: with a message of 8 bytes that waits there, too
        uint32_t threads;         // alone
        uint32_t chunk = 4096, lane_blocks = 1;
    } rows[] = {
        {PHI_STEP_PUSH, 8, PHI_HOP_SECOND, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 64},
        {PHI_STEP_TAKE, 2048, PHI_HOP_SECOND, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 320},
        {PHI_STEP_PUSH, 8193, PHI_HOP_SECOND, PHI_KERNEL_HOP_WIDE, PHI_KERNEL_HOP_SPREAD, 288},
        {PHI_STEP_TAKE, 1 << 20, PHI_HOP_SECOND, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 32},
        {PHI_STEP_TAKE, 1 << 20, PHI_HOP_THIRD, PHI_KERNEL_HOP_WIDE, PHI_KERNEL_HOP_WIDE, 256},
        {PHI_STEP_PUSH, 1 << 20, PHI_HOP_FIRST, PHI_KERNEL_HOP_WIDE, PHI_KERNEL_HOP_SPREAD, 256},
        {PHI_STEP_PUSH, 1 << 20, PHI_HOP_SECOND, PHI_KERNEL_HOP_WIDE, PHI_KERNEL_HOP_SPREAD, 256},
        {PHI_STEP_GO, 64 << 20, PHI_HOP_SECOND, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 32},
        {PHI_STEP_ARRIVE, 64 << 20, PHI_HOP_SECOND, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 128},
        {PHI_STEP_MOVE, 0, PHI_HOP_SECOND, PHI_KERNEL_HOP_SPREAD, PHI_KERNEL_HOP_SPREAD, 256},
        {PHI_STEP_MOVE, 16 << 20, PHI_HOP_FIRST, PHI_KERNEL_HOP_SPREAD, PHI_KERNEL_HOP_SPREAD, 256},
        {PHI_STEP_MOVE, 24 << 20, PHI_HOP_FIRST, PHI_KERNEL_HOP_SPREAD, PHI_KERNEL_HOP_SPREAD, 512},
        {PHI_STEP_MOVE, (24 << 20) + 1, PHI_HOP_SECOND, PHI_KERNEL_HOP_LARGE, PHI_KERNEL_HOP_LARGE,
         512},
        {PHI_STEP_STAGE, 4096, PHI_HOP_SECOND, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED, 96},
        {PHI_STEP_STAGE, 64 << 20, PHI_HOP_SECOND, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED,
         256, 512 << 10, PHI_STAGE_BLOCKS},
        {PHI_STEP_UNSTAGE, 0, PHI_HOP_SECOND, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED, 256,
         512 << 10, PHI_STAGE_BLOCKS},
        {PHI_STEP_BELL, 4096, PHI_HOP_SECOND, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED, 32},
    };
    const uint32_t most[] = {PHI_HOP_THREADS, PHI_SPREAD_THREADS, PHI_SPREAD_THREADS,
                             PHI_HOP_THREADS, PHI_STAGED_THREADS};
    for (const auto &row : rows) {
        phi_work work = hop(row.kind, row.size);
        work.lane.peer = PHI_STAGE_LIKE(row.chunk, row.lane_blocks);
        Launch launch = launch_of({work}, row.part);
        EXPECT_EQ(launch.grid.kernel, row.alone) << int(row.kind) << " " << row.size;
        EXPECT_EQ(launch.grid.threads, row.threads) << int(row.kind) << " " << row.size;
        EXPECT_LE(launch.grid.threads, most[launch.grid.kernel - PHI_KERNEL_HOP]);
        if (phi_step_staged(row.kind))
            continue;
        launch = launch_of(
            {work, hop(row.part == PHI_HOP_FIRST ? PHI_STEP_PUSH : PHI_STEP_TAKE, 8)}, row.part);
        EXPECT_EQ(launch.grid.kernel, row.beside) << int(row.kind) << " " << row.size;
        EXPECT_LE(launch.grid.threads, most[launch.grid.kernel - PHI_KERNEL_HOP]);
    }
    phi_work unaligned = hop(PHI_STEP_TAKE, 128 << 10);
    EXPECT_EQ(launch_of({unaligned}, PHI_HOP_SECOND, false).grid.threads, 1024u);
    unaligned.span.destination = reinterpret_cast<void *>(static_cast<uintptr_t>(8));
    const Launch launch = launch_of({unaligned}, PHI_HOP_SECOND, false);
    EXPECT_EQ(launch.grid.kernel, PHI_KERNEL_HOP_SPREAD);
    EXPECT_EQ(launch.grid.threads, 512u);
}

} // namespace
