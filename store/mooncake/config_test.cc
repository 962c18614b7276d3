#include "store/mooncake/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>

#include "base/log.h"
#include "base/testing/temp_dir.h"

namespace newmoon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// An environment variable as the test has it, and as it was when the test is over.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name)) {
      was_set_ = true;
      old_ = old;
    }
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { was_set_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  bool was_set_ = false;
  std::string old_;
};

class MooncakeConfigTest : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    const std::string path = directory_.path() + "/mooncake.json";
    std::ofstream(path) << text;
    return path;
  }

  testing::TempDir directory_;
  Variable no_file_{"MOONCAKE_CONFIG_PATH", nullptr};
  Variable no_host_{"MOONCAKE_REQUESTER_LOCAL_HOSTNAME", nullptr};
};

std::string error_of(const Result<MooncakeConfig>& config) {
  return config ? "no error" : to_string(config.error());
}

TEST_F(MooncakeConfigTest, UrlAlone) {
  const Result<MooncakeConfig> config = load_mooncake_config("mooncake://127.0.0.1:50051");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->master_server_address, "127.0.0.1:50051");
  EXPECT_EQ(config->metrics_address(), "127.0.0.1:9003");
  EXPECT_EQ(config->local_hostname, "127.0.0.1");  // from where a local master is reached
  EXPECT_EQ(config->metadata_server, "P2PHANDSHAKE");
  EXPECT_EQ(config->protocol, "tcp");
  EXPECT_EQ(config->device_name, "");
  EXPECT_EQ(config->tenant_id, "default");
  EXPECT_EQ(config->global_segment_bytes, 4 * kGiB);
  EXPECT_EQ(config->local_buffer_bytes, 4 * kGiB);
  EXPECT_EQ(config->put_start_discard_timeout.count(), 30);
  EXPECT_EQ(config->put_start_release_timeout.count(), 600);
}

TEST_F(MooncakeConfigTest, UrlWithEveryOption) {
  const Result<MooncakeConfig> config = load_mooncake_config(
      "mooncake://[::1]:5?local_hostname=node1&metadata_server=http%3A%2F%2Fm%3a8080/metadata"
      "&protocol=RDMA&device_name=mlx5_0,mlx5_1&tenant_id=team&global_segment_size=0"
      "&local_buffer_size=16MB&metrics_port=19003&put_start_discard_timeout_sec=2"
      "&put_start_release_timeout_sec=86400");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->master_server_address, "[::1]:5");
  EXPECT_EQ(config->metrics_address(), "[::1]:19003");
  EXPECT_EQ(config->local_hostname, "node1");
  EXPECT_EQ(config->metadata_server, "http://m:8080/metadata");
  EXPECT_EQ(config->protocol, "rdma");
  EXPECT_EQ(config->device_name, "mlx5_0,mlx5_1");
  EXPECT_EQ(config->tenant_id, "team");
  EXPECT_EQ(config->global_segment_bytes, 0u);
  EXPECT_EQ(config->local_buffer_bytes, 16u << 20);
  EXPECT_EQ(config->put_start_discard_timeout.count(), 2);
  EXPECT_EQ(config->put_start_release_timeout.count(), 86400);
}

TEST_F(MooncakeConfigTest, BadUrlsNameTheOption) {
  for (const auto& [url, named] : std::initializer_list<std::pair<const char*, const char*>>{
           {"mooncake:/x", "mooncake://"},
           {"mooncake://host", "'host' is not HOST:PORT"},
           {"mooncake://host:", "'host:'"},
           {"mooncake://:50051", "':50051'"},
           {"mooncake://host:70000", "'host:70000'"},
           {"mooncake://host:1/path", "'host:1/path'"},
           {"mooncake://::1:5", "'::1:5'"},
           {"mooncake://h:1?segment=1", "unknown option 'segment'"},
           {"mooncake://h:1?master_server_address=x:1", "unknown option 'master_server_address'"},
           {"mooncake://h:1?global_segment_size=many", "global_segment_size: 'many' is no size"},
           {"mooncake://h:1?local_buffer_size=0", "local_buffer_size: must be more than 0"},
           {"mooncake://h:1?local_buffer_size", "local_buffer_size: ''"},
           {"mooncake://h:1?metrics_port=x", "metrics_port: 'x' is no port"},
           {"mooncake://h:1?put_start_discard_timeout_sec=0",
            "put_start_discard_timeout_sec: '0' is no number of seconds (1 to 86400)"},
           {"mooncake://h:1?put_start_release_timeout_sec=1m",
            "put_start_release_timeout_sec: '1m'"},
           {"mooncake://h:1?tenant_id=", "tenant_id: must not be empty"},
           {"mooncake://h:1?device_name=%4", "device_name: '%4' has a %"},
           {"mooncake://h:1?device_name=%zz", "device_name: '%zz' has a %"},
       }) {
    const Result<MooncakeConfig> config = load_mooncake_config(url);
    EXPECT_THAT(error_of(config), HasSubstr(named)) << url;
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code, Code::kBadRequest) << url;
    EXPECT_THAT(config.error().message, Not(HasSubstr("\n")));
  }
}

TEST_F(MooncakeConfigTest, HostWithoutAddress) {
  const auto config = load_mooncake_config("mooncake://no-such-host.invalid:50051");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Code::kUnavailable);
  EXPECT_THAT(config.error().message, HasSubstr("no-such-host.invalid"));
}

TEST_F(MooncakeConfigTest, LocalHostnameOfTheEnvironment) {
  const Variable host("MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "node7");
  EXPECT_EQ(load_mooncake_config("mooncake://127.0.0.1:1")->local_hostname, "node7");
  EXPECT_EQ(load_mooncake_config("mooncake://127.0.0.1:1?local_hostname=n8")->local_hostname, "n8");
}

TEST_F(MooncakeConfigTest, FileOfTheEnvironment) {
  const std::string path = file(R"({"master_server_address": "127.0.0.1:50051",
      "metadata_server": "", "protocol": "tcp", "global_segment_size": "1GB",
      "local_buffer_size": 1048576, "enable_offload": false, "mode": "embedded"})");
  const Variable variable("MOONCAKE_CONFIG_PATH", path.c_str());
  const auto config = load_mooncake_config("mooncake://?global_segment_size=2GB");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->master_server_address, "127.0.0.1:50051");
  EXPECT_EQ(config->metadata_server, "P2PHANDSHAKE");
  EXPECT_EQ(config->local_hostname, "127.0.0.1");
  EXPECT_EQ(config->global_segment_bytes, 2 * kGiB);  // the URL counts more
  EXPECT_EQ(config->local_buffer_bytes, 1u << 20);
}

TEST_F(MooncakeConfigTest, NoFile) {
  EXPECT_THAT(error_of(load_mooncake_config("mooncake://")), HasSubstr("MOONCAKE_CONFIG_PATH"));
  const Variable variable("MOONCAKE_CONFIG_PATH", "/nowhere/mooncake.json");
  const auto config = load_mooncake_config("mooncake://");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Code::kUnavailable);
  EXPECT_THAT(config.error().message, HasSubstr("/nowhere/mooncake.json"));
}

TEST_F(MooncakeConfigTest, WhatIsNoFileIsNotRead) {
  const std::string pipe = directory_.path() + "/pipe";  // nobody writes into it
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string big = file(std::string((1 << 20) + 1, ' '));
  for (const std::string& path : {directory_.path(), pipe, std::string("/dev/zero"), big}) {
    const Variable variable("MOONCAKE_CONFIG_PATH", path.c_str());
    EXPECT_THAT(error_of(load_mooncake_config("mooncake://")),
                HasSubstr("cannot read " + path + " (MOONCAKE_CONFIG_PATH)"));
  }
}

TEST(MooncakeJsonTest, DefaultsAreVllms) {
  const auto config = parse_mooncake_json(R"({"master_server_address": "m:50051"})", "f");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->protocol, "rdma");
  EXPECT_EQ(config->metadata_server, "P2PHANDSHAKE");
  EXPECT_EQ(config->global_segment_bytes, 4 * kGiB);
  EXPECT_EQ(config->local_buffer_bytes, 4 * kGiB);
  EXPECT_EQ(config->tenant_id, "default");
}

TEST(MooncakeJsonTest, ExampleOfTheWheel) {
  const auto config = parse_mooncake_json(R"({"local_hostname": "localhost",
      "metadata_server": "localhost:8080", "global_segment_size": 3355443200,
      "local_buffer_size": 1073741824, "protocol": "TCP", "device_name": "",
      "master_server_address": "localhost:8081", "enable_ssd_offload": "false",
      "ssd_offload_path": "", "tenant_id": 7, "enable_client_http_server": false,
      "client_http_port": 9300})",
                                          "f");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->local_hostname, "localhost");
  EXPECT_EQ(config->metadata_server, "localhost:8080");
  EXPECT_EQ(config->global_segment_bytes, 3355443200u);
  EXPECT_EQ(config->protocol, "tcp");
  EXPECT_EQ(config->tenant_id, "7");
}

TEST(MooncakeJsonTest, StandaloneStoreLendsNothing) {
  const std::string begin = R"({"master_server_address": "m:1", "mode": "standalone-store")";
  EXPECT_EQ(parse_mooncake_json(begin + "}", "f")->global_segment_bytes, 0u);
  EXPECT_EQ(
      parse_mooncake_json(begin + R"(, "global_segment_size": 0})", "f")->global_segment_bytes, 0u);
  EXPECT_THAT(error_of(parse_mooncake_json(begin + R"(, "global_segment_size": 1})", "f")),
              HasSubstr("global_segment_size: must be 0"));
  EXPECT_THAT(error_of(parse_mooncake_json(
                  R"({"master_server_address": "m:1", "global_segment_size": 0})", "f")),
              HasSubstr("global_segment_size: must be more than 0"));
}

TEST(MooncakeJsonTest, BadFieldsAreNamed) {
  for (const auto& [fields, named] : std::initializer_list<std::pair<const char*, const char*>>{
           {"\"mode\": \"other\"", "mode: must be"},
           {"\"mode\": 1", "mode: must be"},
           {"\"protocol\": 5", "protocol: must be text, not 5"},
           {"\"protocol\": \"\"", "protocol: must not be empty"},
           {"\"master_server_address\": \"m\"", "master_server_address: 'm' is not HOST:PORT"},
           {"\"global_segment_size\": -1", "global_segment_size: must be a whole number or text"},
           {"\"global_segment_size\": 1.5", "global_segment_size: must be"},
           {"\"global_segment_size\": null", "global_segment_size: must be"},
           {"\"local_buffer_size\": \"1XB\"", "local_buffer_size: '1XB' is no size"},
           {"\"enable_offload\": true", "enable_offload: is not supported"},
           {"\"enable_ssd_offload\": \"yes\"", "enable_ssd_offload: is not supported"},
           {"\"enable_client_http_server\": 1", "enable_client_http_server: is not supported"},
       }) {
    const auto config = parse_mooncake_json("{" + std::string(fields) + "}", "file.json");
    EXPECT_THAT(error_of(config), HasSubstr("file.json: " + std::string(named)));
  }
  EXPECT_THAT(error_of(parse_mooncake_json("{}", "f")), HasSubstr("master_server_address"));
  for (const char* text : {"", "[]", "{", "\xff"}) {
    EXPECT_THAT(error_of(parse_mooncake_json(text, "f")), HasSubstr("f is not a JSON object"));
  }
}

TEST(MooncakeJsonTest, UnknownFieldIsIgnoredAndSaid) {
  std::string logged;
  set_log_sink([&](LogLevel level, std::string_view, std::string_view message) {
    if (level == LogLevel::kWarning) logged = message;
  });
  const auto config =
      parse_mooncake_json(R"({"master_server_address": "m:1", "global_segment": "1GB"})", "f");
  set_log_sink({});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->global_segment_bytes, 4 * kGiB);
  EXPECT_THAT(logged, HasSubstr("f: unknown field 'global_segment'"));
}

TEST(MooncakeSizeTest, UnitsAreBinary) {
  EXPECT_EQ(parse_size_bytes("0"), 0u);
  EXPECT_EQ(parse_size_bytes("4096"), 4096u);
  EXPECT_EQ(parse_size_bytes("7b"), 7u);
  EXPECT_EQ(parse_size_bytes("3KB"), 3u << 10);
  EXPECT_EQ(parse_size_bytes(" 1.5 gb "), 3 * kGiB / 2);
  EXPECT_EQ(parse_size_bytes("512m"), 512u << 20);
  EXPECT_EQ(parse_size_bytes("2T"), 2048 * kGiB);
}

TEST(MooncakeSizeTest, Bad) {
  for (const char* text : {"", " ", "GB", "b", "-1", "1e3", "1 G B", "1GiB", "0x10", "nan", "inf",
                           "99999999999999999999", "9000000TB", "1..5"}) {
    EXPECT_FALSE(parse_size_bytes(text)) << text;
  }
}

}  // namespace
}  // namespace newmoon
