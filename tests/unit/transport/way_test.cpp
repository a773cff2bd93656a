// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

extern "C" {
#include "transport/way.h"
}

// Every combination of what libfabric, the provider and the device can do, and of what is asked
// for.
TEST(Way, SaysWhatIsMissing)
{
    const struct {
        bool fabric, provider, device;
        phi_reason dmabuf, hmem;
    } rows[] = {
        {false, false, false, PHI_REASON_NET_NO_DMABUF, PHI_REASON_NET_PROVIDER},
        {false, false, true, PHI_REASON_NET_FABRIC, PHI_REASON_NET_PROVIDER},
        {false, true, false, PHI_REASON_NET_NO_DMABUF, PHI_REASON_NONE},
        {false, true, true, PHI_REASON_NET_FABRIC, PHI_REASON_NONE},
        {true, false, false, PHI_REASON_NET_NO_DMABUF, PHI_REASON_NET_PROVIDER},
        {true, false, true, PHI_REASON_NET_PROVIDER, PHI_REASON_NET_PROVIDER},
        {true, true, false, PHI_REASON_NET_NO_DMABUF, PHI_REASON_NONE},
        {true, true, true, PHI_REASON_NONE, PHI_REASON_NONE},
    };
    for (const auto &row : rows)
        for (int asked : {PHI_MEMORY_AUTO, PHI_MEMORY_DMABUF, PHI_MEMORY_HMEM, PHI_MEMORY_STAGED}) {
            const bool dmabuf = asked == PHI_MEMORY_AUTO || asked == PHI_MEMORY_DMABUF;
            const bool hmem = asked == PHI_MEMORY_AUTO || asked == PHI_MEMORY_HMEM;
            const phi_way_facts facts = {row.fabric, row.provider, row.device, asked};
            EXPECT_EQ(phi_way_against_dmabuf(&facts), dmabuf ? row.dmabuf : PHI_REASON_USER)
                << row.fabric << row.provider << row.device << asked;
            EXPECT_EQ(phi_way_against_hmem(&facts), hmem ? row.hmem : PHI_REASON_USER)
                << row.fabric << row.provider << row.device << asked;
            EXPECT_STRNE(phi_reason_text(row.dmabuf), "");
        }
}

// Every order that a device may have, with every set of flushes, for both readers.
TEST(Flush, EveryCombinationOfAttributes)
{
    const phi_flush none = PHI_FLUSH_NONE, owner = PHI_FLUSH_OWNER, all = PHI_FLUSH_ALL,
                    read = PHI_FLUSH_READ;
    const struct {
        int ordering;
        uint32_t flushes; // 1: by the host, 2: by the stream
        phi_flush owner, peer;
    } rows[] = {
        {PHI_ORDERING_NONE, 0, read, read},  {PHI_ORDERING_NONE, 1, owner, all},
        {PHI_ORDERING_NONE, 2, read, read},  {PHI_ORDERING_NONE, 3, owner, all},
        {PHI_ORDERING_OWNER, 0, none, read}, {PHI_ORDERING_OWNER, 1, none, all},
        {PHI_ORDERING_OWNER, 2, none, read}, {PHI_ORDERING_OWNER, 3, none, all},
        {PHI_ORDERING_ALL, 0, none, none},   {PHI_ORDERING_ALL, 1, none, none},
        {PHI_ORDERING_ALL, 2, none, none},   {PHI_ORDERING_ALL, 3, none, none},
    };
    for (const auto &row : rows)
        for (bool staged : {false, true})
            for (bool peer : {false, true}) {
                const phi_flush_facts facts = {staged, peer, row.ordering, row.flushes,
                                               PHI_NET_FLUSH_AUTO};
                EXPECT_EQ(phi_flush_choose(&facts), staged ? none
                                                    : peer ? row.peer
                                                           : row.owner)
                    << "staged " << staged << " peer " << peer << " ordering " << row.ordering
                    << " flushes " << row.flushes;
            }
    // What is asked for is taken, whatever the device says; staged memory needs nothing all the
    // same.
    for (const auto &row : rows)
        for (bool staged : {false, true})
            for (bool peer : {false, true}) {
                phi_flush_facts facts = {staged, peer, row.ordering, row.flushes,
                                         PHI_NET_FLUSH_NONE};
                EXPECT_EQ(phi_flush_choose(&facts), none);
                facts.asked = PHI_NET_FLUSH_DRIVER;
                EXPECT_EQ(phi_flush_choose(&facts), staged ? none : peer ? all : owner);
                facts.asked = PHI_NET_FLUSH_READ;
                EXPECT_EQ(phi_flush_choose(&facts), staged ? none : read);
            }
    EXPECT_STREQ(phi_flush_name(none), "none");
    EXPECT_STREQ(phi_flush_name(owner), "driver");
    EXPECT_STREQ(phi_flush_name(all), "driver_all");
    EXPECT_STREQ(phi_flush_name(read), "read");
}
