/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of configuration keys: the one place where a key, its default and its help are written.
 * Constant data; any thread. The order is that of the sample file.
 */
#include "daemon/base/priority.h"
#include "daemon/conf/conf.h"

#define SECOND 1000000000ull
#define HOUR (3600ull * SECOND)
#define DAY (24 * HOUR)

#define KEY(section, name, initial, type, reload, min, max, member, help)                          \
    {                                                                                              \
        section, name, initial, type, reload, min, max, offsetof(struct conf, member), help, NULL  \
    }

#define KEY_CHOICE(section, name, initial, reload, member, choices, help)                          \
    {                                                                                              \
        section, name, initial, CONF_CHOICE, reload, 0, 0, offsetof(struct conf, member), help,    \
            choices                                                                                \
    }

static const char *const level_names[] = {"error", "warning", "info", "debug", NULL};
static const char *const placement_names[] = {"auto", "off", NULL};
static const char *const switch_names[] = {"off", "on", NULL};
const char *const conf_device_names[] = {"auto", "host", "cuda", NULL};

const struct conf_key conf_keys[] = {
    KEY("daemon", "runtime_dir", "/run/gradwire", CONF_PATH, false, 0, CONF_PATH_BYTES - 1,
        runtime_dir,
        "Directory of the sockets, the lock and one entry per engine. Also --runtime-dir and "
        "$GRADWIRE_RUNTIME_DIR."),
    KEY("daemon", "socket", "", CONF_PATH, false, 0, CONF_SOCKET_MAX, socket,
        "Client socket. Empty: gradwired.sock in runtime_dir. Also --socket and "
        "$GRADWIRE_SOCKET."),
    KEY("daemon", "admin_socket", "", CONF_PATH, false, 0, CONF_SOCKET_MAX, admin_socket,
        "Administration socket. Empty: admin.sock beside the client socket."),
    KEY("daemon", "engine", "", CONF_PATH, false, 0, CONF_PATH_BYTES - 1, engine,
        "Program to start for each job. Empty: gradwire-engine as installed with gradwired. Also "
        "--engine and $GRADWIRE_ENGINE."),
    KEY("daemon", "group", "gradwire", CONF_NAME, false, 0, 0, group,
        "Group (name or number) that may use the client socket; root only where there is no such "
        "group. Without meaning when gradwired runs as an ordinary user."),
    KEY("daemon", "admin_group", "gradwire-admin", CONF_NAME, false, 0, 0, admin_group,
        "Group (name or number) that may use the administration socket."),
    KEY_CHOICE("daemon", "log_level", "info", true, log_level, level_names,
               "Least severe messages that are logged."),
    KEY_CHOICE("daemon", "device", "auto", false, device, conf_device_names,
               "Where jobs may compute: host; cuda: on GPUs too, and gradwired does not start "
               "without one; auto: on GPUs too where there are some. Also --device."),
    KEY("daemon", "plugins", "", CONF_PATH, false, 0, CONF_PATH_BYTES - 1, plugins,
        "Directory of gradwire-cuda.so. Empty: beside gradwire-engine, or as installed. Also "
        "--plugins and $GRADWIRE_PLUGINS."),
    KEY("job", "linger", "60s", CONF_TIME, true, 0, 365 * DAY, linger_ns,
        "How long an engine outlives its last client, where the job does not say otherwise."),
    KEY("job", "memory_max_bytes", "0", CONF_BYTES, true, 0, INT64_MAX, memory_max_bytes,
        "Memory that one job may take on this node for all its buffers. 0: no limit."),
    KEY("job", "stall_report", "10s", CONF_TIME, true, SECOND / 1000, 365 * DAY, stall_report_ns,
        "When a job whose ranks wait for one of them says so first; then at doubled times."),
    KEY_CHOICE("job", "gpu_sharing", "off", true, gpu_sharing, switch_names,
               "Whether several jobs may use one GPU."),
    KEY_CHOICE(
        "job", "worker_priority", "equal", true, worker_priority, priority_names,
        "How threads that sum and copy in host memory share processors with training: equal; "
        "nice: ten steps nicer, a tenth of a processor that training wants; idle: only what "
        "nothing else wants."),
    KEY_CHOICE("job", "placement", "auto", true, placement, placement_names,
               "auto: an engine keeps to processors that its ranks may use, its workers and each "
               "rank's memory to their NUMA nodes; off: where the kernel puts them."),
    KEY("nodes", "node_name", "", CONF_NAME, true, 0, 0, node_name,
        "What this node is called in the texts of jobs that span nodes. Empty: its host name."),
    KEY("nodes", "star_interface", "", CONF_NAME, true, 0, 0, star_interface,
        "Interface (eth1), address (10.0.0.1, fd00::1) or host name of this node where the engine "
        "of a job's rank 0 listens for those of its other nodes. Empty: the address that the "
        "default route uses, or loopback's."),
    KEY("nodes", "star_ports", "46200-46399", CONF_PORTS, true, 0, 0, star_ports,
        "Ports for it: one for each job that spans nodes and was created here. 0: any free one."),
    KEY("nodes", "star_beat", "100ms", CONF_TIME, true, SECOND / 1000, HOUR, star_beat_ns,
        "How often the engines of a job's nodes tell each other that they live."),
    KEY("nodes", "star_lost", "800ms", CONF_TIME, true, SECOND / 100, HOUR, star_lost_ns,
        "A node that was not heard of for so long is lost to the job. At least four times "
        "star_beat."),
    KEY("limits", "max_jobs_per_user", "64", CONF_COUNT, true, 1, 65536, max_jobs_per_user,
        "Jobs that one user may have on this node."),
    KEY("limits", "max_connections_per_user", "256", CONF_COUNT, true, 1, 65536,
        max_connections_per_user,
        "Connections of one user that gradwired itself holds: those not yet passed on to an "
        "engine, and gwctl's."),
    KEY("limits", "max_half_open", "64", CONF_COUNT, true, 1, 65536, max_half_open,
        "Connections of one user that have not said Hello yet. They have two seconds for it."),
};

const size_t conf_keys_count = sizeof(conf_keys) / sizeof(conf_keys[0]);
