// SPDX-License-Identifier: BSD-3-Clause
// Graphs that hold operations of ours, with the test in the driver's place.
#define _Alignas alignas
#include "support/atomic_compat.h"

#include <cerrno>
#include <cstdlib>

#include <gtest/gtest.h>

extern "C" {
#include "semaphore/capture.h"
}

static bool no_memory;

extern "C" {
void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size)
{
    return no_memory ? nullptr : __real_realloc(memory, size);
}
}

namespace
{

CUhostFn destroy;
void *destroyed;

CUresult capture_info(CUstream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *,
                      const CUgraphNode **, size_t *)
{
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *id = 7;
    return CUDA_SUCCESS;
}

CUresult make_object(CUuserObject *, void *opaque, CUhostFn destructor, unsigned, unsigned)
{
    destroy = destructor;
    destroyed = opaque;
    return CUDA_SUCCESS;
}

CUresult retain_object(CUgraph, CUuserObject, unsigned, unsigned)
{
    return CUDA_SUCCESS;
}

class Captures : public testing::Test
{
  protected:
    phi_report report;
    phi_driver driver = {};
    phi_captures captures;
    phi_capture *graph = nullptr;

    void SetUp() override
    {
        phi_report_init(&report, nullptr, nullptr, PH_LOG_NONE);
        driver.cuStreamGetCaptureInfo_v2 = capture_info;
        driver.cuUserObjectCreate = make_object;
        driver.cuGraphRetainUserObject = retain_object;
        phi_captures_init(&captures, &report, &driver);
        ASSERT_EQ(phi_capture_begin(&captures, nullptr, nullptr, 0, &graph), 0);
    }
    void TearDown() override
    {
        no_memory = false;
        destroy(destroyed); // the graph is gone
        EXPECT_EQ(captures.live, 0u);
        for (uint64_t word : captures.sync)
            EXPECT_EQ(word, 0u) << "a branch of no graph has sync words";
        phi_captures_fini(&captures);
        phi_report_fini(&report);
    }
    phi_branch work_on(uint64_t stream)
    {
        phi_branch branch = phi_capture_branch(&captures, graph, stream);
        phi_capture_sync(&captures, graph, &branch);
        phi_capture_update(&captures, graph, &branch);
        return branch;
    }
};

TEST_F(Captures, EachBranchHasItsOwnSyncWords)
{
    EXPECT_EQ(work_on(1).sync, 1u);
    EXPECT_EQ(work_on(2).sync, 2u);
    EXPECT_EQ(work_on(1).sync, 1u);
    for (uint64_t stream = 3; stream <= PHI_GRAPH_SYNCS; stream++)
        EXPECT_EQ(work_on(stream).sync, stream);
    phi_branch branch = phi_capture_branch(&captures, graph, PHI_GRAPH_SYNCS + 1);
    EXPECT_EQ(phi_capture_sync(&captures, graph, &branch), -EAGAIN);
}

TEST_F(Captures, ABranchThatCannotBeRememberedHasNoSyncWords)
{
    no_memory = true;
    EXPECT_EQ(work_on(1).sync, 0u);
    phi_branch branch = phi_capture_branch(&captures, graph, 1);
    EXPECT_EQ(phi_capture_sync(&captures, graph, &branch), -ENOMEM);
    no_memory = false;
    EXPECT_EQ(work_on(1).sync, 1u);
}

} // namespace
