/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradwired: command line and exit codes (sysexits): 64 usage, 69 another gradwired or process has
 * the place, 71 no memory or descriptors, 72 no engine program, 73 something cannot be made,
 * 77 not permitted, 78 configuration. Main thread.
 */
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/supervisor/config.h"
#include "daemon/supervisor/log.h"
#include "daemon/supervisor/run.h"

/* Descriptors of whoever started us are not for engines. */
static void keep_descriptors_home(void)
{
    (void)syscall(SYS_close_range, 3u, ~0u, 1u << 2 /* CLOSE_RANGE_CLOEXEC */);
}

static int run(const struct options *options, char *error, size_t error_bytes)
{
    const char *config = options->config != NULL ? options->config : GW_CONFIG_FILE;
    char engine[CONF_PATH_BYTES];
    struct conf file_conf, conf;
    int r;

    r = config_load(config, options->config == NULL, &file_conf, error, error_bytes);
    if (r != 0)
        return r;
    conf = file_conf;
    r = config_resolve(options, &conf, error, error_bytes);
    if (r != 0)
        return r;
    if (options->check_config) {
        (void)printf("%s: %s\n", config,
                     options->config != NULL || access(config, F_OK) == 0
                         ? "the configuration is right"
                         : "there is no such file, the defaults are used");
        return 0;
    }
    log_start(options->foreground);
    log_set_level((enum conf_level)conf.log_level);
    r = config_engine(&conf, engine, sizeof(engine), error, error_bytes);
    if (r != 0)
        return r;
    return supervisor_run(
        &(struct supervisor_options){
            .conf = &conf,
            .file_conf = &file_conf,
            .config_path = config,
            .config_optional = options->config == NULL,
            .engine_path = engine,
        },
        error, error_bytes);
}

int main(int argc, char **argv)
{
    char error[1024] = "";
    struct options options;
    int r;

    keep_descriptors_home();
    (void)umask(0022);
    r = options_parse(argc, argv, &options, error, sizeof(error));
    if (r == 0 && options.help) {
        options_help();
    } else if (r == 0 && options.version) {
        (void)printf("gradwired %s\n", GW_VERSION);
    } else if (r == 0) {
        r = run(&options, error, sizeof(error));
    }
    if (r != 0)
        log_error("%s", error);
    return r;
}
