// SPDX-License-Identifier: BSD-3-Clause
// The tables that docs/protocols.md shows are those of the code, and the tests that docs/traps.md
// names are there.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "support/atomic_compat.h"

extern "C" {
#include "semaphore/words.h"
}

static const char *const words[] = {"turn", "note"};
static_assert(sizeof(words) / sizeof(words[0]) == PHI_WORD_COUNT, "a name for each word");

static std::string trimmed(const std::string &text)
{
    size_t from = text.find_first_not_of(' '), to = text.find_last_not_of(' ');
    return from == std::string::npos ? "" : text.substr(from, to - from + 1);
}

static std::vector<std::string> cells(const std::string &line)
{
    std::vector<std::string> row;
    std::stringstream in(line.substr(1));
    for (std::string cell; std::getline(in, cell, '|');)
        row.push_back(trimmed(cell));
    return row;
}

// The rows of the table whose first line is this one.
static std::vector<std::vector<std::string>> table(const std::string &head,
                                                   const char *name = "docs/protocols.md")
{
    std::ifstream page(std::filesystem::path(SOURCES) / name);
    std::vector<std::vector<std::string>> rows;
    bool inside = false;
    for (std::string line; std::getline(page, line);) {
        if (inside && (line.empty() || line[0] != '|'))
            break;
        if (inside && line.compare(0, 4, "|---") != 0)
            rows.push_back(cells(line));
        inside = inside || line == head;
    }
    return rows;
}

static std::string bit_name(unsigned bit)
{
    switch (bit) {
    case PHI_BIT_READY:
        return "READY";
    case PHI_BIT_FULL:
        return "FULL";
    case PHI_BIT_NOTED:
        return "NOTED";
    case PHI_BIT_FREE:
        return "FREE";
    default:
        return std::to_string(bit);
    }
}

// Of the kinds of steps up to UNSTAGE.
static const char *const hops[] = {"push", "take",  "go",      "move",  "arrive",
                                   "room", "leave", "message", "stage", "unstage"};

static std::string steps_of(const phi_program &program)
{
    std::string text;
    for (int i = 0; i < program.count; i++) {
        const phi_step &step = program.steps[i];
        text += i ? ", " : "";
        switch (step.kind) {
        case PHI_STEP_WAIT:
            text += std::string("wait ") + words[step.word] + " " + bit_name(step.bit);
            break;
        case PHI_STEP_POST:
            text += std::string("post ") + words[step.word] + " " + bit_name(step.bit);
            break;
        case PHI_STEP_COPY:
            text += "copy";
            break;
        default:
            text += hops[step.kind] + std::string(" ") + words[step.word];
            break;
        }
    }
    return text.empty() ? "nothing" : text;
}

// The programs with such a step, in the table's order.
static std::string users(unsigned kind, unsigned bit, const std::string &word)
{
    std::string names;
    for (const phi_program &program : phi_programs)
        for (int i = 0; i < program.count; i++) {
            const phi_step &step = program.steps[i];
            if (step.kind == kind && step.bit == bit && words[step.word] == word)
                names += (names.empty() ? "" : ", ") + std::string(program.name);
        }
    return names;
}

TEST(Page, ProgramsAreThoseOfTheCode)
{
    auto rows = table("| call | end | phase | steps |");
    ASSERT_EQ(rows.size(), size_t(PHI_CALL_COUNT));
    for (int call = 0; call < PHI_CALL_COUNT; call++) {
        const phi_program &program = phi_programs[call];
        ASSERT_EQ(rows[call].size(), 4u);
        EXPECT_EQ(rows[call][0], program.name);
        EXPECT_EQ(rows[call][2], std::to_string(program.phase)) << program.name;
        EXPECT_EQ(rows[call][3], steps_of(program)) << program.name;
    }
}

// Of the calls from `first` to `last`.
static void expect_flags(const char *header, phi_method method, phi_call first,
                         phi_call last = phi_call(PHI_CALL_COUNT - 1))
{
    auto rows = table(header);
    ASSERT_EQ(rows.size(), size_t(last) + 1 - first);
    for (size_t row = 0; row < rows.size(); row++) {
        const phi_program *program = phi_program_of(phi_call(first + row), method, 0);
        ASSERT_EQ(rows[row].size(), 3u);
        EXPECT_EQ(rows[row][0], program->name);
        EXPECT_EQ(rows[row][1], std::to_string(program->phase)) << program->name;
        EXPECT_EQ(rows[row][2], steps_of(*program)) << program->name;
    }
}

TEST(Page, MessagesOfUnboundChannelsAreThoseOfTheCode)
{
    expect_flags("| call by bounce | phase | steps |", PHI_BY_BOUNCE, PHI_CALL_POST,
                 PHI_CALL_COMPLETE);
}

TEST(Page, MessagesByFlagsAreThoseOfTheCode)
{
    // All but put and get, which are plain copies.
    expect_flags("| call by sm | phase | steps |", PHI_BY_SM, PHI_CALL_POST);
    expect_flags("| call by ll | phase | steps |", PHI_BY_LL, PHI_CALL_POST);
    for (int method = 0; method < PHI_BY_STAGED; method++)
        for (phi_call call : {PHI_CALL_PUT, PHI_CALL_GET})
            EXPECT_EQ(phi_program_of(call, phi_method(method), 0), &phi_programs[call]);
    // The get protocol: the sender's post pushes, and only by ll the programs differ.
    EXPECT_EQ(steps_of(*phi_program_of(PHI_CALL_POST, PHI_BY_LL, 1)), "push turn");
    EXPECT_EQ(steps_of(*phi_program_of(PHI_CALL_TRANSFER, PHI_BY_LL, 1)), "take turn");
    EXPECT_EQ(steps_of(*phi_program_of(PHI_CALL_COMPLETE, PHI_BY_LL, 1)), "nothing");
    for (int call = 0; call < PHI_CALL_COUNT; call++)
        EXPECT_EQ(phi_program_of(phi_call(call), PHI_BY_SM, 1),
                  phi_program_of(phi_call(call), PHI_BY_SM, 0));
}

TEST(Page, StagedMessagesAreThoseOfTheCode)
{
    expect_flags("| call staged | phase | steps |", PHI_BY_STAGED, PHI_CALL_PUT);
    EXPECT_EQ(steps_of(*phi_program_of(PHI_CALL_POST, PHI_BY_STAGED, 1)), "stage turn");
    EXPECT_EQ(steps_of(*phi_program_of(PHI_CALL_TRANSFER, PHI_BY_STAGED, 1)), "unstage turn");
    EXPECT_EQ(steps_of(*phi_program_of(PHI_CALL_COMPLETE, PHI_BY_STAGED, 1)), "nothing");
    for (phi_call call : {PHI_CALL_PUT, PHI_CALL_SIGNAL, PHI_CALL_PUT_SIGNAL, PHI_CALL_WAIT})
        EXPECT_EQ(phi_program_of(call, PHI_BY_STAGED, 1), phi_program_of(call, PHI_BY_STAGED, 0));
}

// "turn READY", or "nothing".
static std::string step_name(const phi_step *step)
{
    return step ? words[step->word] + (" " + bit_name(step->bit)) : "nothing";
}

TEST(Page, BellsAreThoseOfTheCode)
{
    auto rows = table("| call by bells | waits for | copies | posts |");
    ASSERT_EQ(rows.size(), size_t(PHI_CALL_COUNT));
    for (int call = 0; call < PHI_CALL_COUNT; call++) {
        const phi_bell bell = phi_bell_of(&phi_programs[call]);
        EXPECT_EQ(rows[call],
                  (std::vector<std::string>{phi_programs[call].name, step_name(bell.wait),
                                            bell.copies ? "yes" : "no", step_name(bell.post)}));
    }
}

TEST(Page, WordsAreThoseOfTheCode)
{
    auto rows = table("| word | of | start |");
    ASSERT_EQ(rows.size(), size_t(PHI_WORD_COUNT));
    for (int word = 0; word < PHI_WORD_COUNT; word++) {
        ASSERT_EQ(rows[word].size(), 3u);
        EXPECT_EQ(rows[word][0], words[word]);
        EXPECT_EQ(rows[word][2], bit_name(phi_word_start[word])) << words[word];
    }
}

// Who posts a bit is who the programs say posts it, and who waits for it likewise.
TEST(Page, BitsAreThoseOfTheCode)
{
    static const unsigned bits[] = {PHI_BIT_READY, PHI_BIT_FULL, PHI_BIT_NOTED, PHI_BIT_FREE};
    auto rows = table("| word | bit | value | says | posted by | awaited by |");
    ASSERT_EQ(rows.size(), sizeof(bits) / sizeof(bits[0]));
    for (size_t i = 0; i < rows.size(); i++) {
        ASSERT_EQ(rows[i].size(), 6u);
        EXPECT_EQ(rows[i][1], bit_name(bits[i]));
        EXPECT_EQ(rows[i][2], std::to_string(bits[i]));
        EXPECT_EQ(rows[i][4], users(PHI_STEP_POST, bits[i], rows[i][0])) << rows[i][1];
        EXPECT_EQ(rows[i][5], users(PHI_STEP_WAIT, bits[i], rows[i][0])) << rows[i][1];
    }
}

// Suite.Name of every test in the sources.
static std::set<std::string> tests_there_are()
{
    const std::regex test(R"(TEST(?:_[FP])?\((\w+), (\w+)\))");
    std::set<std::string> names;
    for (const auto &entry :
         std::filesystem::recursive_directory_iterator(std::filesystem::path(SOURCES) / "tests")) {
        if (entry.path().extension() != ".cpp")
            continue;
        std::ifstream source(entry.path());
        std::smatch parts;
        for (std::string line; std::getline(source, line);)
            if (std::regex_search(line, parts, test))
                names.insert(parts[1].str() + "." + parts[2].str());
    }
    return names;
}

TEST(Page, TestsOfTrapsAreThere)
{
    const auto rows = table("| trap | what goes wrong | tests |", "docs/traps.md");
    const std::regex name("`(\\w+\\.\\w+)`");
    const std::set<std::string> there = tests_there_are();
    ASSERT_EQ(rows.size(), 17u);
    for (size_t row = 0; row < rows.size(); row++) {
        ASSERT_EQ(rows[row].size(), 3u);
        EXPECT_EQ(rows[row][0], std::to_string(row + 1));
        std::sregex_iterator named(rows[row][2].begin(), rows[row][2].end(), name);
        EXPECT_NE(named, std::sregex_iterator()) << "trap " << row + 1 << " has no test";
        for (; named != std::sregex_iterator(); ++named)
            EXPECT_EQ(there.count((*named)[1]), 1u) << (*named)[1] << " of trap " << row + 1;
    }
}
