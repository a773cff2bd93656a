// SPDX-License-Identifier: BSD-3-Clause
// A folder that only this user can enter, for a test's time.
#ifndef TESTS_SUPPORT_FOLDER_H
#define TESTS_SUPPORT_FOLDER_H

#include <cstdlib>
#include <filesystem>
#include <string>

class Folder
{
  public:
    Folder()
    {
        std::string name = std::filesystem::temp_directory_path() / "peerhop-test-XXXXXX";
        if (mkdtemp(name.data()) == nullptr)
            abort();
        path_ = name;
    }
    ~Folder()
    {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;

    const std::string &path() const
    {
        return path_;
    }
    // The store in a directory of this folder, which is yet to be made.
    std::string store() const
    {
        return "file:" + path_ + "/store";
    }
    size_t files() const // of that store
    {
        std::filesystem::directory_iterator list(path_ + "/store"), end;
        return static_cast<size_t>(std::distance(list, end));
    }
    std::string list() const // of them, one a line
    {
        std::string text;
        for (const auto &file : std::filesystem::directory_iterator(path_ + "/store"))
            text += file.path().filename().string() + "\n";
        return text;
    }

  private:
    std::string path_;
};

#endif
