// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

extern "C" {
#include "store/envelope.h"
}

namespace
{

phi_envelope message()
{
    phi_envelope envelope{};
    envelope.kind = PHI_ENVELOPE_MESSAGE;
    envelope.source = 3;
    envelope.destination = 5;
    envelope.source_incarnation = 0x0102030405060708;
    envelope.destination_incarnation = 9;
    envelope.sequence = 77;
    return envelope;
}

std::string encode(const phi_envelope &envelope, const std::string &payload)
{
    uint8_t *bytes = phi_envelope_encode(&envelope, payload.data(), payload.size());
    std::string text(reinterpret_cast<char *>(bytes), PHI_ENVELOPE_SIZE + payload.size());
    free(bytes);
    return text;
}

int decode(const std::string &text, phi_envelope *envelope)
{
    return phi_envelope_decode(envelope, reinterpret_cast<const uint8_t *>(text.data()),
                               text.size());
}

TEST(Envelope, ComesBack)
{
    std::string text = encode(message(), "payload");
    EXPECT_EQ(text.substr(PHI_ENVELOPE_SIZE), "payload");
    phi_envelope got{};
    ASSERT_EQ(decode(text, &got), 0);
    EXPECT_EQ(got.kind, PHI_ENVELOPE_MESSAGE);
    EXPECT_EQ(got.source, 3u);
    EXPECT_EQ(got.destination, 5u);
    EXPECT_EQ(got.source_incarnation, 0x0102030405060708u);
    EXPECT_EQ(got.destination_incarnation, 9u);
    EXPECT_EQ(got.sequence, 77u);
}

TEST(Envelope, LayoutIsFixed)
{
    std::string text = encode(message(), "x");
    const unsigned char head[] = {'P', 'H', 'P', 'M', 1, 0, 2, 0, 3, 0, 0, 0,
                                  5,   0,   0,   0,   8, 7, 6, 5, 4, 3, 2, 1};
    EXPECT_EQ(memcmp(text.data(), head, sizeof(head)), 0);
    EXPECT_EQ(text[40], 1); // length
}

TEST(Envelope, EmptyPayload)
{
    phi_envelope got{};
    EXPECT_EQ(decode(encode(message(), ""), &got), 0);
}

TEST(Envelope, TruncatedOrLonger)
{
    std::string text = encode(message(), "payload");
    phi_envelope got{};
    for (size_t size = 0; size < text.size(); size++)
        EXPECT_EQ(decode(text.substr(0, size), &got), -EBADMSG) << size;
    EXPECT_EQ(decode(text + "x", &got), -EBADMSG);
    EXPECT_EQ(phi_envelope_decode(&got, nullptr, 0), -EBADMSG);
    EXPECT_EQ(got.sequence, 0u); // outputs only on success
}

TEST(Envelope, OtherMagicOrVersion)
{
    std::string text = encode(message(), "payload");
    phi_envelope got{};
    std::string changed = text;
    changed[0] = 'Q';
    EXPECT_EQ(decode(changed, &got), -EBADMSG);
    changed = text;
    changed[4] = 2;
    EXPECT_EQ(decode(changed, &got), -EPROTONOSUPPORT);
    EXPECT_EQ(decode(changed.substr(0, 6), &got),
              -EPROTONOSUPPORT); // a later version may be shorter
}

TEST(Envelope, ContradictionsInside)
{
    phi_envelope got{}, wrong = message();
    wrong.sequence = 0;
    EXPECT_EQ(decode(encode(wrong, ""), &got), -EBADMSG);
    wrong = message();
    wrong.source_incarnation = 0;
    EXPECT_EQ(decode(encode(wrong, ""), &got), -EBADMSG);
    wrong = message();
    wrong.kind = static_cast<phi_envelope_kind>(4);
    EXPECT_EQ(decode(encode(wrong, ""), &got), -EBADMSG);
    wrong = message();
    wrong.kind = PHI_ENVELOPE_MEMBER; // with a sequence and one destination
    EXPECT_EQ(decode(encode(wrong, ""), &got), -EBADMSG);
    wrong.sequence = 0;
    EXPECT_EQ(decode(encode(wrong, ""), &got), -EBADMSG);
    wrong.destination = PHI_ENVELOPE_ALL;
    EXPECT_EQ(decode(encode(wrong, ""), &got), 0);
}

} // namespace
