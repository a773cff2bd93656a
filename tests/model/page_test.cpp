// SPDX-License-Identifier: BSD-3-Clause
// The tables that docs/protocols.md shows are those of the code.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "support/atomic_compat.h"

extern "C" {
#include "semaphore/words.h"
}

static const char *const words[] = {"ready", "full", "credit", "note"};
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
static std::vector<std::vector<std::string>> table(const std::string &head)
{
    std::ifstream page(PROTOCOLS_PAGE);
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

static std::string steps_of(const phi_program &program)
{
    std::string text;
    for (int i = 0; i < program.count; i++) {
        const phi_step &step = program.steps[i];
        text += i ? ", " : "";
        switch (step.kind) {
        case PHI_STEP_WAIT:
            text += std::string("wait ") + words[step.word];
            break;
        case PHI_STEP_RESET:
            text += std::string("reset ") + words[step.word];
            break;
        case PHI_STEP_POST:
            text += std::string("post ") + words[step.word];
            break;
        default:
            text += "copy";
            break;
        }
    }
    return text;
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

TEST(Page, WordsAreThoseOfTheCode)
{
    auto rows = table("| word | lives at | says | start |");
    ASSERT_EQ(rows.size(), size_t(PHI_WORD_COUNT));
    for (int word = 0; word < PHI_WORD_COUNT; word++) {
        ASSERT_EQ(rows[word].size(), 4u);
        EXPECT_EQ(rows[word][0], words[word]);
        EXPECT_EQ(rows[word][3], std::to_string(phi_word_start[word])) << words[word];
    }
}
