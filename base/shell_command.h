// A command for people to run, within a message.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace newmoon {

// The words as a shell takes them: newmoon scopes --store 'mooncake://host:1?a=1&b=2'
std::string shell_command(std::initializer_list<std::string_view> words);

}  // namespace newmoon
