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
        work[i].size = sizes.count(c) ? sizes.at(c) : 0;
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
    EXPECT_EQ(phi_wait_mode(&policy, &others), 1);
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 0);
    others.memory_operations = 15;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 0);
    others.memory_operations = 16;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 1)
        << "beyond the limit a kernel, on a shared GPU too";
}

TEST(Policy, UnlessAskedNoStreamWaitsByMemoryOperation)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    phi_waiting others{};
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 1);
}

TEST(Policy, AtMostSoManyKernelsWait)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    phi_waiting others{};
    others.kernels = 63;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 1);
    others.kernels = 64;
    EXPECT_EQ(phi_wait_mode(&policy, &others), -EAGAIN);
    policy.wait = PHI_WAIT_MEMORY_OPERATION;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 0);
}

TEST(Policy, AForcedWaitPassesTheLimits)
{
    phi_policy policy = policy_of(PHI_WAIT_MEMORY_OPERATION, PHI_METHOD_AUTO);
    phi_waiting others{};
    others.memory_operations = 100;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 0);
    policy.wait = PHI_WAIT_KERNEL;
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 1);
}

TEST(Policy, WhatTheDeviceHasNotIsNotUsed)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    phi_waiting others{};
    policy.kernels = false;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 0);
    EXPECT_FALSE(phi_copy_mode(&policy, true));
    policy.kernels = true;
    policy.batches = false;
    policy.shared = true;
    EXPECT_EQ(phi_wait_mode(&policy, &others), 1);
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
    const phi_waiting others{};
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
    EXPECT_EQ(phi_move_blocks(&policy, &others, 1, SIZE_MAX), 16u);
}

TEST(Policy, WaitingBlocksLeaveRoom)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    phi_waiting others{};
    uint32_t last = 64;
    for (int i = 0; i < 64; i++) {
        const uint32_t blocks = phi_transfer_blocks(&policy, &others, SIZE_MAX);
        EXPECT_GE(blocks, 1u);
        EXPECT_LE(blocks, last);
        last = blocks;
        others.blocks += blocks;
    }
    EXPECT_EQ(last, 1u);
    EXPECT_LT(others.blocks, 132u + 64u);
    others.blocks = 0;
    EXPECT_EQ(phi_transfer_blocks(&policy, &others, 100), 1u);
}

// Sends and receipts of messages by both in one launch: the ends take no blocks from the copies,
// and all of them not many more than these may have.
TEST(Policy, EndsOfMessagesLeaveRoom)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    const phi_waiting others{};
    const auto grid_of = [&](size_t sends, size_t receipts, phi_hop_args *args) {
        std::string letters;
        for (size_t i = 0; i < sends; i++)
            letters += "mu";
        for (size_t i = 0; i < receipts; i++)
            letters += "at";
        std::vector<phi_work> work = work_of(letters);
        for (phi_work &one : work) {
            const bool end = one.kind == PHI_STEP_PUSH || one.kind == PHI_STEP_TAKE;
            one.size = end ? 512 << 10 : 8 << 20;
            one.wide = end;
            one.tail = one.kind != PHI_STEP_ARRIVE;
        }
        return phi_hop_fill(work.data(), work.size(), &policy, &others, args);
    };
    phi_hop_args args;
    EXPECT_EQ(grid_of(1, 0, &args).blocks, 64u + 16);
    EXPECT_EQ(args.items[1].signal, 64u) << "the end waits for all blocks of its copy";
    EXPECT_EQ(grid_of(0, 1, &args).blocks, 1u + 64);
    EXPECT_EQ(grid_of(1, 1, &args).blocks, 64u + 16 + 1 + 33);
    EXPECT_EQ(args.items[0].blocks, 64u) << "a receipt takes nothing from a copy";
    EXPECT_EQ(grid_of(0, 8, &args).blocks, 8 * (1u + 8)) << "receipts share what one might have";
    EXPECT_EQ(grid_of(4, 4, &args).blocks, 4 * (16u + 4) + 4 * (1 + 8));
    EXPECT_EQ(grid_of(8, 0, &args).blocks, 8 * (8u + 2));
}

// Of large copies warps draw what they copy: few blocks will do, but for what is not aligned alike.
TEST(Policy, LargeCopiesTakeFewBlocks)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    const phi_waiting others{};
    phi_hop_args args;
    const auto blocks_of = [&](size_t size, uintptr_t apart, bool tail) {
        std::vector<phi_work> work = work_of(tail ? "mu" : "m");
        work[0].size = size;
        work[0].source = reinterpret_cast<void *>(static_cast<uintptr_t>(0x10000000));
        work[0].destination = reinterpret_cast<void *>(0x20000000 + apart);
        if (tail)
            work[1].size = 512 << 10;
        for (phi_work &one : work)
            one.tail = tail;
        phi_hop_fill(work.data(), work.size(), &policy, &others, &args);
        return args.items[0].blocks;
    };
    const size_t most = 24 << 20;
    EXPECT_EQ(blocks_of(most, 0, false), 64u);
    EXPECT_EQ(blocks_of(most + 1, 0, false), 32u);
    EXPECT_EQ(blocks_of(most + 1, 64, false), 32u);
    EXPECT_EQ(blocks_of(most + 1, 4, false), 64u);
    EXPECT_EQ(blocks_of(most + 1, 1, false), 64u);
    EXPECT_EQ(blocks_of(most, 0, true), 64u);
    EXPECT_EQ(args.items[1].blocks, 16u);
    EXPECT_EQ(blocks_of(most + 1, 0, true), 32u);
    EXPECT_EQ(args.items[1].blocks, 16u) << "as many as if the copy had all it may have";
    EXPECT_EQ(args.items[1].signal, 32u) << "the end waits for those that the copy has";
    EXPECT_EQ(blocks_of(most + 1, 4, true), 64u);
    EXPECT_EQ(args.items[1].blocks, 16u);
    policy.copy_blocks = 16;
    EXPECT_EQ(blocks_of(1 << 30, 0, false), 16u);
}

// Copies that wait for nobody hold places, too, while the launch before them waits.
TEST(Policy, CopiesBeginEarlyWhereThereIsRoom)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    phi_waiting others{};
    EXPECT_TRUE(phi_copies_early(&policy, &others, 0, 66));
    EXPECT_FALSE(phi_copies_early(&policy, &others, 0, 67));
    EXPECT_TRUE(phi_copies_early(&policy, &others, 1, 65));
    EXPECT_FALSE(phi_copies_early(&policy, &others, 4, 65))
        << "what the launch before holds counts";
    others.blocks = 130;
    EXPECT_TRUE(phi_copies_early(&policy, &others, 0, 1));
    EXPECT_FALSE(phi_copies_early(&policy, &others, 1, 1));
    others.blocks = 200;
    EXPECT_FALSE(phi_copies_early(&policy, &others, 0, 1));
}

TEST(Policy, CopiesOfOneLaunchShareTheRoom)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    const phi_waiting others{};
    std::vector<phi_work> work(PHI_HOP_ITEMS);
    for (size_t n = 1; n <= work.size(); n++) {
        phi_hop_args args;
        work[n - 1].kind = PHI_STEP_MOVE;
        work[n - 1].size = 16 << 20;
        phi_grid grid = phi_hop_fill(work.data(), n, &policy, &others, &args);
        EXPECT_LE(grid.blocks, 66u) << n;
        EXPECT_GE(grid.blocks, 48u) << n;
        for (size_t i = 0; i < n; i++) {
            EXPECT_GE(args.items[i].blocks, 1u);
            EXPECT_EQ(args.items[i].first, i * args.items[0].blocks);
        }
        work[n - 1].size = 64 << 20; // of large ones, too
        grid = phi_hop_fill(work.data(), n, &policy, &others, &args);
        EXPECT_LE(grid.blocks, 66u) << n;
        EXPECT_GE(args.items[n - 1].blocks, 1u);
        work[n - 1].size = 16 << 20;
    }
}

// Messages by lines have a block, and large wide ones several, which share the room with copies.
TEST(Policy, WideMessagesHaveBlocks)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    phi_waiting others{};
    const struct {
        size_t size;
        uint32_t blocks, threads;
        uint8_t wide;
    } rows[] = {{0, 1, 64, 0},      {8, 1, 64, 0},       {8192, 1, 1024, 0},
                {2049, 1, 96, 1},   {8192, 1, 288, 1},   {15360, 1, 512, 1},
                {15361, 4, 256, 1}, {65536, 16, 256, 1}, {1 << 20, 64, 256, 1}};
    for (phi_step_kind kind : {PHI_STEP_PUSH, PHI_STEP_TAKE})
        for (const auto &row : rows) {
            phi_hop_args args;
            phi_work work{};
            work.kind = kind;
            work.size = row.size;
            work.wide = row.wide;
            phi_grid grid = phi_hop_fill(&work, 1, &policy, &others, &args);
            EXPECT_EQ(grid.blocks, row.blocks) << row.size;
            EXPECT_EQ(grid.threads, row.threads) << row.size;
            EXPECT_EQ(args.items[0].blocks, row.blocks);
            EXPECT_EQ(args.items[0].wide, row.wide);
        }
    phi_work work[3] = {};
    work[0].kind = work[1].kind = PHI_STEP_TAKE;
    work[2].kind = PHI_STEP_MOVE;
    work[0].size = 131072;
    work[0].wide = 1;
    work[2].size = 16 << 20;
    phi_hop_args args;
    phi_hop_fill(work, 3, &policy, &others, &args);
    EXPECT_EQ(args.items[0].blocks, 32u);
    EXPECT_EQ(args.items[1].blocks, 1u);
    EXPECT_EQ(args.items[2].blocks, 33u);
    others.blocks = 200; // one block, of as many threads as there are
    phi_grid grid = phi_hop_fill(work, 1, &policy, &others, &args);
    EXPECT_EQ(args.items[0].blocks, 1u);
    EXPECT_EQ(grid.threads, 512u);
}

// What a launch writes for others is there before its number. A take writes for nobody else but
// into host memory.
TEST(Policy, NumbersComeBehindWhatOthersRead)
{
    const phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    const phi_waiting others{};
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
        phi_hop_args args;
        phi_work work[2] = {};
        work[0].kind = row.kind;
        work[0].signal = row.signal;
        work[0].peer_lane = PHI_STAGE_LIKE(4096, 1);
        work[0].host_destination = row.host_destination;
        work[1].kind = PHI_STEP_TAKE;
        phi_hop_fill(work, phi_step_staged(row.kind) ? 1 : 2, &policy, &others, &args);
        EXPECT_EQ(args.items[0].fence, row.fence) << int(row.kind) << int(row.signal);
        if (!phi_step_staged(row.kind)) {
            EXPECT_EQ(args.items[1].fence, 0u);
        }
    }
}

// A push of several blocks looks for the launch behind it before it fences; alone, and up to a
// size.
TEST(Policy, AWidePushLooksBeforeItFences)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    const phi_waiting others{};
    const struct {
        size_t size, n;
        uint8_t wide;
        uint32_t fence;
    } rows[] = {{8192, 1, 0, PHI_FENCE},       {8192, 1, 1, PHI_FENCE},
                {32768, 1, 1, PHI_FENCE_LAST}, {262144, 1, 1, PHI_FENCE_LAST},
                {262145, 1, 1, PHI_FENCE},     {32768, 2, 1, PHI_FENCE}};
    for (const auto &row : rows) {
        phi_hop_args args;
        phi_work work[2] = {};
        work[0].kind = work[1].kind = PHI_STEP_PUSH;
        work[0].size = work[1].size = row.size;
        work[0].wide = work[1].wide = row.wide;
        phi_hop_fill(work, row.n, &policy, &others, &args);
        EXPECT_EQ(args.items[0].fence, row.fence) << row.size << " " << row.n;
        // What tells of stores that have no fence begins with one.
        work[0].fence_before = 1;
        phi_hop_fill(work, row.n, &policy, &others, &args);
        EXPECT_EQ(args.items[0].fence, row.fence | PHI_FENCE_BEFORE);
    }
}

// The kernel with all that the items need and no more, with no more threads than it is made for.
TEST(Policy, ALaunchIsOfTheSmallestKernelThatServes)
{
    phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    policy.blocks = 132;
    const phi_waiting others{}, crowd{0, 0, 200};
    const struct {
        phi_step_kind kind;
        size_t size;
        const phi_waiting *others;
        phi_kernel alone, beside; // beside: with a message of 8 KiB by lines, if it is not staged
        uint32_t threads;         // alone
        uint32_t chunk = 4096, lane_blocks = 1;
    } rows[] = {
        {PHI_STEP_PUSH, 8192, &others, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 1024},
        {PHI_STEP_TAKE, 8192, &others, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 1024},
        {PHI_STEP_PUSH, 8193, &others, PHI_KERNEL_HOP_WIDE, PHI_KERNEL_HOP_SPREAD, 288},
        {PHI_STEP_TAKE, 16384, &others, PHI_KERNEL_HOP_WIDE, PHI_KERNEL_HOP_SPREAD, 256},
        {PHI_STEP_TAKE, 16384, &crowd, PHI_KERNEL_HOP_WIDE, PHI_KERNEL_HOP_SPREAD, 512},
        {PHI_STEP_GO, 64 << 20, &others, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 128},
        {PHI_STEP_ARRIVE, 64 << 20, &others, PHI_KERNEL_HOP, PHI_KERNEL_HOP, 128},
        {PHI_STEP_MOVE, 0, &others, PHI_KERNEL_HOP_SPREAD, PHI_KERNEL_HOP_SPREAD, 256},
        {PHI_STEP_MOVE, 16 << 20, &others, PHI_KERNEL_HOP_SPREAD, PHI_KERNEL_HOP_SPREAD, 256},
        {PHI_STEP_MOVE, 24 << 20, &others, PHI_KERNEL_HOP_SPREAD, PHI_KERNEL_HOP_SPREAD, 512},
        {PHI_STEP_MOVE, (24 << 20) + 1, &crowd, PHI_KERNEL_HOP_LARGE, PHI_KERNEL_HOP_LARGE, 512},
        {PHI_STEP_STAGE, 4096, &others, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED, 96},
        {PHI_STEP_STAGE, 64 << 20, &others, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED, 256,
         512 << 10, PHI_STAGE_BLOCKS},
        {PHI_STEP_UNSTAGE, 0, &others, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED, 256, 512 << 10,
         PHI_STAGE_BLOCKS},
        {PHI_STEP_BELL, 4096, &others, PHI_KERNEL_HOP_STAGED, PHI_KERNEL_HOP_STAGED, 32},
    };
    const uint32_t most[] = {PHI_HOP_THREADS, PHI_SPREAD_THREADS, PHI_SPREAD_THREADS,
                             PHI_SPREAD_THREADS, PHI_STAGED_THREADS};
    for (const auto &row : rows) {
        phi_hop_args args;
        phi_work work[2] = {};
        work[0].kind = row.kind;
        work[0].size = row.size;
        work[0].wide = row.size > 8192; // by lines
        work[0].peer_lane = PHI_STAGE_LIKE(row.chunk, row.lane_blocks);
        work[1].kind = PHI_STEP_PUSH;
        work[1].size = 8192;
        phi_grid grid = phi_hop_fill(work, 1, &policy, row.others, &args);
        EXPECT_EQ(grid.kernel, row.alone) << int(row.kind) << " " << row.size;
        EXPECT_EQ(grid.threads, row.threads) << int(row.kind) << " " << row.size;
        EXPECT_LE(grid.threads, most[grid.kernel - PHI_KERNEL_HOP]);
        if (phi_step_staged(row.kind))
            continue;
        grid = phi_hop_fill(work, 2, &policy, row.others, &args);
        EXPECT_EQ(grid.kernel, row.beside) << int(row.kind) << " " << row.size;
        EXPECT_LE(grid.threads, most[grid.kernel - PHI_KERNEL_HOP]);
    }
}

// An arrival has a thread for each word, in whichever company.
TEST(Policy, AnArrivalHasAThreadForEachWord)
{
    const phi_policy policy = policy_of(PHI_WAIT_AUTO, PHI_METHOD_AUTO);
    const phi_waiting others{};
    for (phi_step_kind beside : {PHI_STEP_PUSH, PHI_STEP_TAKE, PHI_STEP_GO, PHI_STEP_MOVE}) {
        phi_hop_args args;
        phi_work work[2] = {};
        work[0].kind = beside;
        work[0].size = 8;
        work[1].kind = PHI_STEP_ARRIVE;
        phi_grid grid = phi_hop_fill(work, 2, &policy, &others, &args);
        EXPECT_GE(grid.threads, unsigned(PHI_MOVE_BLOCKS)) << int(beside);
    }
}

} // namespace
