/* SPDX-License-Identifier: Apache-2.0 */
/* Options, environment and file become one struct conf. Holds nothing; runs before the loop, and on
 * SIGHUP in it. */
#include "daemon/supervisor/config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include "daemon/ipc/handles.h"
#include "daemon/supervisor/rundir.h"
#include "gradwire/errors.h"

#define FILE_MAX (1u << 20)

/* ---- command line -------------------------------------------------------------------------- */

static const struct option long_options[] = {
    {"foreground", no_argument, NULL, 'f'},
    {"socket", required_argument, NULL, 's'},
    {"runtime-dir", required_argument, NULL, 'r'},
    {"config", required_argument, NULL, 'c'},
    {"check-config", no_argument, NULL, 't'},
    {"engine", required_argument, NULL, 'e'},
    {"device", required_argument, NULL, 'd'},
    {"plugins", required_argument, NULL, 'p'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

int options_parse(int argc, char **argv, struct options *ret_options, char *error,
                  size_t error_bytes)
{
    struct options options = {0};
    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        switch (option) {
        case 'f':
            options.foreground = true;
            break;
        case 's':
            options.socket = optarg;
            break;
        case 'r':
            options.runtime_dir = optarg;
            break;
        case 'c':
            options.config = optarg;
            break;
        case 't':
            options.check_config = true;
            break;
        case 'e':
            options.engine = optarg;
            break;
        case 'd':
            options.device = optarg;
            break;
        case 'p':
            options.plugins = optarg;
            break;
        case 'V':
            options.version = true;
            break;
        case 'h':
            options.help = true;
            break;
        default:
            (void)snprintf(error, error_bytes, "%s %s; see gradwired --help",
                           option == ':' ? "a value is missing after" : "unknown option",
                           argv[optind - 1]);
            return EX_USAGE;
        }
    }
    if (optind < argc) {
        (void)snprintf(error, error_bytes, "unexpected argument %s; see gradwired --help",
                       argv[optind]);
        return EX_USAGE;
    }
    *ret_options = options;
    return 0;
}

void options_help(void)
{
    (void)puts("Usage: gradwired [OPTION]...\n"
               "Serves gradient reduction to the training jobs of this node.\n"
               "\n"
               "  --foreground        log plain lines to stderr (it never goes to the background)\n"
               "  --runtime-dir DIR   sockets, lock and engines; also $GRADWIRE_RUNTIME_DIR\n"
               "  --socket PATH       client socket; also $GRADWIRE_SOCKET\n"
               "  --engine PATH       program to start for each job; also $GRADWIRE_ENGINE\n"
               "  --device WHAT       where jobs may compute: auto, host or cuda (auto)\n"
               "  --plugins DIR       where gradwire-cuda.so is; also $GRADWIRE_PLUGINS\n"
               "  --config FILE       configuration (" GW_CONFIG_FILE ")\n"
               "  --check-config      read the configuration, say whether it is right, end\n"
               "  --version, --help\n"
               "\n"
               "Signals: SIGTERM, SIGINT end gradwired and leave jobs alone; SIGHUP reads the\n"
               "configuration again.\n"
               "\n"
               "Configuration keys and their defaults ('*': taken over on SIGHUP):");
    for (size_t i = 0; i < conf_keys_count; i++) {
        const struct conf_key *key = &conf_keys[i];

        if (i == 0 || strcmp(key->section, conf_keys[i - 1].section) != 0)
            (void)printf("[%s]\n", key->section);
        (void)printf("  %c %s =%s%s\n", key->reload ? '*' : ' ', key->name,
                     key->initial[0] != '\0' ? " " : "", key->initial);
    }
}

/* ---- file ---------------------------------------------------------------------------------- */

static int read_file(int fd, char **ret_text, size_t *ret_bytes)
{
    char *text = malloc(FILE_MAX);
    size_t used = 0;
    ssize_t n = 1;

    if (text == NULL)
        return GW_E_NOMEM;
    while (used < FILE_MAX && (n = read(fd, text + used, FILE_MAX - used)) > 0)
        used += (size_t)n;
    if (n < 0 || used == FILE_MAX) {
        errno = n < 0 ? errno : EFBIG;
        free(text);
        return GW_E_IO;
    }
    *ret_text = text;
    *ret_bytes = used;
    return 0;
}

int config_load(const char *path, bool optional, struct conf *ret_conf, char *error,
                size_t error_bytes)
{
    struct conf conf;
    struct stat status;
    char *text = NULL;
    size_t bytes = 0;
    int fd;
    int r;

    conf_defaults(&conf);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT && optional) {
        *ret_conf = conf;
        return 0;
    }
    if (fd >= 0 && fstat(fd, &status) == 0 && !S_ISREG(status.st_mode)) {
        (void)snprintf(error, error_bytes, "%s: not a regular file", path);
        fd_close(&fd);
        return EX_CONFIG;
    }
    r = fd < 0 ? GW_E_IO : read_file(fd, &text, &bytes);
    fd_close(&fd);
    if (r < 0) {
        (void)snprintf(error, error_bytes, "cannot read the configuration %s: %s", path,
                       strerror(errno));
        return EX_CONFIG;
    }
    r = conf_parse(text, bytes, path, &conf, error, error_bytes);
    free(text);
    if (r < 0)
        return EX_CONFIG;
    *ret_conf = conf;
    return 0;
}

/* ---- all together -------------------------------------------------------------------------- */

/* Relative paths of command line and environment are meant from here. */
static int set_path(char field[CONF_PATH_BYTES], const char *value, const char *what, char *error,
                    size_t error_bytes)
{
    char here[PATH_MAX] = "";
    int n;

    if (value[0] != '/' && getcwd(here, sizeof(here)) == NULL)
        here[0] = '\0';
    n = snprintf(field, CONF_PATH_BYTES, "%s%s%s", here, here[0] != '\0' ? "/" : "", value);
    if (value[0] == '\0' || n < 0 || n >= (int)CONF_PATH_BYTES) {
        (void)snprintf(error, error_bytes, "%s: %s", what,
                       value[0] == '\0' ? "an empty path" : "the path is too long");
        return EX_USAGE;
    }
    return 0;
}

static int overlay(const struct options *options, struct conf *conf, char *error,
                   size_t error_bytes)
{
    const struct {
        char *field;
        const char *option, *variable, *what;
    } paths[] = {
        {conf->runtime_dir, options->runtime_dir, "GRADWIRE_RUNTIME_DIR", "--runtime-dir"},
        /* Who names a directory wants the socket there, whatever the environment is set to. */
        {conf->socket, options->socket, options->runtime_dir == NULL ? "GRADWIRE_SOCKET" : NULL,
         "--socket"},
        {conf->engine, options->engine, "GRADWIRE_ENGINE", "--engine"},
        {conf->plugins, options->plugins, "GRADWIRE_PLUGINS", "--plugins"},
    };
    int r;

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        const char *value = paths[i].option;
        const char *what = paths[i].what;

        if (value == NULL && paths[i].variable != NULL) {
            value = getenv(paths[i].variable);
            what = paths[i].variable;
            if (value != NULL && value[0] == '\0')
                value = NULL;
        }
        if (value == NULL)
            continue;
        r = set_path(paths[i].field, value, what, error, error_bytes);
        if (r != 0)
            return r;
    }
    if (options->runtime_dir != NULL && options->socket == NULL)
        conf->socket[0] = conf->admin_socket[0] = '\0';
    return 0;
}

static_assert(RUNDIR_SOCKET_MAX == CONF_SOCKET_MAX, "both are what fits a socket's address");

static int check_socket(const char *path, bool from_file, char *error, size_t error_bytes)
{
    if (strlen(path) <= RUNDIR_SOCKET_MAX)
        return 0;
    (void)snprintf(error, error_bytes,
                   "the socket path is too long, %zu bytes of at most %u: %s; choose a shorter "
                   "--socket or --runtime-dir",
                   strlen(path), RUNDIR_SOCKET_MAX, path);
    return from_file ? EX_CONFIG : EX_USAGE;
}

static int overlay_device(const char *value, struct conf *conf, char *error, size_t error_bytes)
{
    for (uint32_t i = 0; value != NULL; i++) {
        if (conf_device_names[i] == NULL) {
            (void)snprintf(error, error_bytes, "--device %s: give auto, host or cuda", value);
            return EX_USAGE;
        }
        if (strcmp(value, conf_device_names[i]) == 0) {
            conf->device = i;
            return 0;
        }
    }
    return 0;
}

int config_resolve(const struct options *options, struct conf *conf, char *error,
                   size_t error_bytes)
{
    bool from_file = options->socket == NULL && options->runtime_dir == NULL;
    char path[CONF_PATH_BYTES + 32];
    size_t bytes;
    int r;

    r = overlay(options, conf, error, error_bytes);
    if (r == 0)
        r = overlay_device(options->device, conf, error, error_bytes);
    if (r != 0)
        return r;
    bytes = strlen(conf->runtime_dir);
    while (bytes > 1 && conf->runtime_dir[bytes - 1] == '/')
        conf->runtime_dir[--bytes] = '\0';
    if (conf->socket[0] == '\0') {
        (void)snprintf(path, sizeof(path), "%s/gradwired.sock", conf->runtime_dir);
        r = check_socket(path, from_file, error, error_bytes);
        if (r != 0)
            return r;
        memcpy(conf->socket, path, strlen(path) + 1);
    }
    r = check_socket(conf->socket, from_file, error, error_bytes);
    if (r != 0)
        return r;
    if (conf->admin_socket[0] == '\0') {
        const char *slash = strrchr(conf->socket, '/');

        (void)snprintf(path, sizeof(path), "%.*s/admin.sock", (int)(slash - conf->socket),
                       conf->socket);
        r = check_socket(path, from_file, error, error_bytes);
        if (r != 0)
            return r;
        memcpy(conf->admin_socket, path, strlen(path) + 1);
    }
    return check_socket(conf->admin_socket, from_file, error, error_bytes);
}

static bool is_program(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

int config_engine(const struct conf *conf, char *path, size_t path_bytes, char *error,
                  size_t error_bytes)
{
    /* Installed beside gradwired, in libexec, or in the build tree. */
    static const char *const places[] = {"", "../libexec/gradwire/", "../engine/"};
    char self[PATH_MAX];
    ssize_t n;
    char *slash;

    if (conf->engine[0] != '\0') {
        (void)snprintf(path, path_bytes, "%s", conf->engine);
        if (is_program(path))
            return 0;
        (void)snprintf(error, error_bytes,
                       "the engine %s is not an executable file; name it with --engine", path);
        return EX_OSFILE;
    }
    n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash != NULL)
        slash[1] = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int used = snprintf(path, path_bytes, "%s%sgradwire-engine", self, places[i]);

        if (used > 0 && (size_t)used < path_bytes && is_program(path))
            return 0;
    }
    (void)snprintf(path, path_bytes, "%s", GW_ENGINE_INSTALLED);
    if (is_program(path))
        return 0;
    (void)snprintf(
        error, error_bytes,
        "there is no gradwire-engine beside %sgradwired nor at %s; name it with --engine", self,
        GW_ENGINE_INSTALLED);
    return EX_OSFILE;
}
