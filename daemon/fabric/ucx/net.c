/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net's life: UCX's context and worker, the thread and what others ask of it, endpoints of a
 * generation, and how everything ends. See net.h.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "daemon/fabric/ucx/net_internal.h"
#include "gradwire/errors.h"

#define SPINS 32u /* turns without news before sleeping, while requests are under way */
#define CLOSE_NS 1000000000ull /* for what was sent to go out, at the end */

uint64_t net_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- what others ask ------------------------------------------------------------------------- */

/* With the lock held at entry; not at exit. */
static void wake_and_unlock(struct net *net)
{
    bool asleep = net->asleep;

    net->asleep = false;
    pthread_mutex_unlock(&net->lock);
    if (asleep)
        (void)ucp_worker_signal(net->workers[NET_IN]);
}

void net_post(struct net *net, struct net_request *request)
{
    request->net = net;
    pthread_mutex_lock(&net->lock);
    if (net->refuses) {
        pthread_mutex_unlock(&net->lock);
        net_end(request, GW_E_PEER_LOST);
        return;
    }
    request->generation = net->asked_generation;
    net_list_add(&net->posted, request);
    wake_and_unlock(net);
}

int net_form(struct net *net)
{
    pthread_mutex_lock(&net->lock);
    fabric_nodes_copy(&net->asked_nodes, net->config.nodes);
    net->asked_generation++;
    net->asked_form = true;
    net->refuses = false;
    net->failure[0] = 0;
    wake_and_unlock(net);
    return 0;
}

void net_abort(struct net *net)
{
    pthread_mutex_lock(&net->lock);
    net->asked_abort = true;
    net->asked_form = false;
    net->refuses = true;
    wake_and_unlock(net);
}

void net_fail(struct net *net, const char *text)
{
    pthread_mutex_lock(&net->lock);
    if (!net->failure[0])
        snprintf(net->failure, sizeof(net->failure), "%s", text);
    wake_and_unlock(net);
}

/* ---- endpoints ------------------------------------------------------------------------------- */

static void on_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    struct net_peer *peer = arg;

    (void)endpoint;
    (void)status;
    peer->failed = true;
    if (peer->net->open && net_waits_for_failed(peer->net))
        net_broken(peer->net);
}

void net_broken(struct net *net)
{
    if (net->open && net->fault_at_ns == UINT64_MAX)
        net->fault_at_ns = net_now_ns() + NET_GRACE_NS;
}

static void on_closed(void *handle, ucs_status_t status, void *arg)
{
    struct net *net = arg;

    (void)status;
    net->under_way--;
    ucp_request_free(handle);
}

static void close_endpoint(struct net *net, ucp_ep_h endpoint, bool force)
{
    const ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                     UCP_OP_ATTR_FIELD_USER_DATA |
                                                     UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0,
                                     .cb.send = on_closed,
                                     .user_data = net};

    net->under_way++;
    if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(endpoint, &how)))
        net->under_way--;
}

/* force: what is under way with it fails, now. */
static void close_peer(struct net *net, struct net_peer *peer, bool force)
{
    for (uint32_t way = 0; way < NET_WAYS; way++) {
        ucp_ep_h endpoint = peer->endpoints[way];
        peer->endpoints[way] = NULL;
        if (endpoint)
            close_endpoint(net, endpoint, force || peer->failed);
    }
}

static void close_all(struct net *net, bool force)
{
    for (uint32_t i = 0; i < GW_NODES_MAX; i++)
        close_peer(net, &net->peers[i], force);
}

static int open_endpoint(struct net *net, struct net_peer *peer, enum net_way way,
                         const uint8_t *address)
{
    const ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                  UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                    .address = (const ucp_address_t *)(const void *)address,
                                    .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {.cb = on_error, .arg = peer}};

    if (ucp_ep_create(net->workers[way], &params, &peer->endpoints[way]) == UCS_OK)
        return 0;
    peer->endpoints[way] = NULL;
    return GW_E_DEVICE;
}

static void open_peer(struct net *net, uint32_t node)
{
    const uint8_t *address = net->nodes.at[node].address;
    struct net_peer *peer = &net->peers[node];
    struct net_address head;

    memcpy(&head, address, sizeof(head));
    address += sizeof(head);
    *peer = (struct net_peer){.net = net};
    if (open_endpoint(net, peer, NET_OUT, address + head.bytes[NET_OUT]) < 0 ||
        open_endpoint(net, peer, NET_IN, address) < 0)
        peer->failed = true;
}

/* ---- turns ----------------------------------------------------------------------------------- */

void net_fault(struct net *net, const char *format, ...)
{
    char text[GW_TEXT_MAX + 1];
    va_list arguments;

    if (net->faulted || !net->open)
        return;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    net->faulted = true;
    net->config.fault(net->config.user, text);
}

static void end_generation(struct net *net)
{
    if (!net->open)
        return;
    net->open = net->faulted = false;
    close_all(net, true);
    net_end_all(net, GW_E_PEER_LOST);
    net_drop_held(net, net->generation);
    net->fault_at_ns = UINT64_MAX;
}

static void begin_generation(struct net *net, uint32_t generation)
{
    net->generation = generation;
    net->open = true;
    net->faulted = false;
    for (uint32_t i = 0; i < net->nodes.count; i++)
        if (i != net->nodes.own && net->nodes.at[i].address_bytes > sizeof(struct net_address))
            open_peer(net, i);
}

static void post_one(struct net *net, struct net_request *request)
{
    if (!net->open || request->generation != net->generation)
        net_end(request, GW_E_PEER_LOST);
    else if (request->send)
        net_send(net, request);
    else
        net_expect(net, request);
}

static void look_at_failed(struct net *net)
{
    for (uint32_t i = 0; i < net->nodes.count; i++)
        if (net->peers[i].failed)
            close_peer(net, &net->peers[i], true);
    if (net_now_ns() < net->fault_at_ns)
        return;
    net->fault_at_ns = UINT64_MAX;
    for (uint32_t i = 0; i < net->nodes.count; i++)
        if (net->peers[i].failed && net_waits_for_failed(net))
            net_fault(net,
                      "node %s cannot be reached over the data network, although its engine lives: "
                      "look at the network between the nodes, and at UCX_NET_DEVICES and UCX_TLS",
                      net->nodes.at[i].name);
}

/* What others have asked for since; nothing of the last generation is left in UCX when the next one
 * begins, and what is posted for that one waits for it. */
struct asked {
    struct net_list posted;
    uint32_t generation;
    bool abort, form;
    char failure[GW_TEXT_MAX + 1];
};

static void take_asked(struct net *net, struct asked *asked)
{
    pthread_mutex_lock(&net->lock);
    asked->abort = net->asked_abort || (net->asked_form && net->open);
    asked->form = net->asked_form && !net->open && net->under_way == 0;
    asked->generation = net->asked_generation;
    net->asked_abort = false;
    net->asked_form = net->asked_form && !asked->form;
    asked->posted = (struct net_list){NULL, NULL};
    if (!net->asked_form) {
        asked->posted = net->posted;
        net->posted = (struct net_list){NULL, NULL};
    }
    if (asked->form)
        fabric_nodes_copy(&net->nodes, &net->asked_nodes);
    memcpy(asked->failure, net->failure, sizeof(asked->failure));
    pthread_mutex_unlock(&net->lock);
}

/* False: nothing was asked. */
static bool do_asked(struct net *net)
{
    struct net_request *request;
    struct asked asked;

    take_asked(net, &asked);
    if (asked.abort)
        end_generation(net);
    if (asked.form)
        begin_generation(net, asked.generation);
    if (asked.failure[0])
        net_fault(net, "%s", asked.failure);
    if (net->faulted)
        end_generation(net);
    if (!asked.posted.head && !asked.form && !asked.abort)
        return false;
    while ((request = net_list_take(&asked.posted)))
        post_one(net, request);
    return true;
}

static int sleep_ms(const struct net *net)
{
    uint64_t now_ns = net_now_ns();

    if (net->fault_at_ns == UINT64_MAX)
        return -1;
    return net->fault_at_ns > now_ns ? (int)((net->fault_at_ns - now_ns) / 1000000u + 1) : 0;
}

/* False: nothing was there to be done. */
static bool progress(struct net *net)
{
    bool any = false;

    for (uint32_t way = 0; way < NET_WAYS; way++)
        while (ucp_worker_progress(net->workers[way]) > 0)
            any = true;
    return any;
}

static void sleep_until_news(struct net *net)
{
    struct pollfd events[NET_WAYS];

    for (uint32_t way = 0; way < NET_WAYS; way++) {
        events[way] = (struct pollfd){.fd = net->event_fds[way], .events = POLLIN};
        if (ucp_worker_arm(net->workers[way]) != UCS_OK)
            return; /* there is news */
    }
    pthread_mutex_lock(&net->lock);
    net->asleep = !net->posted.head && !net->asked_abort && !net->asked_end && !net->asked_form;
    if (!net->asleep) {
        pthread_mutex_unlock(&net->lock);
        return;
    }
    pthread_mutex_unlock(&net->lock);
    (void)poll(events, NET_WAYS, sleep_ms(net));
    pthread_mutex_lock(&net->lock);
    net->asleep = false;
    pthread_mutex_unlock(&net->lock);
}

static void finish_all(struct net *net)
{
    uint64_t until_ns = net_now_ns() + CLOSE_NS;

    close_all(net, !net->open);
    net->open = false;
    while (net->under_way > 0 && net_now_ns() < until_ns)
        if (!progress(net))
            (void)poll(NULL, 0, 1);
    net_end_all(net, GW_E_PEER_LOST);
    net_drop_held(net, UINT32_MAX);
}

static void *net_main(void *arg)
{
    struct net *net = arg;
    uint32_t idle = 0;
    bool ends = false;

    (void)pthread_setname_np(pthread_self(), "ucx");
    while (!ends) {
        bool news = do_asked(net);
        news |= progress(net);
        news |= net_receive(net);
        look_at_failed(net);
        idle = news ? 0 : idle + 1;
        if (!net->faulted && (idle > SPINS || (idle > 0 && net->under_way == 0)))
            sleep_until_news(net);
        pthread_mutex_lock(&net->lock);
        ends = net->asked_end;
        pthread_mutex_unlock(&net->lock);
    }
    finish_all(net);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int context_new(struct net *net)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucp_config_t *config;
    ucs_status_t status;

    /* By TCP, pieces of UCX's own 64 KiB are slower (tests/bench/README.md); a quarter of a chunk
     * and room for its heads, or each chunk had a fifth piece of some bytes. An administrator's
     * word is heeded. */
    (void)setenv("UCX_TCP_RX_SEG_SIZE", "260k", 0);
    if (ucp_config_read(NULL, NULL, &config) != UCS_OK)
        return GW_E_NOMEM;
    status = ucp_init(&params, config, &net->context);
    ucp_config_release(config);
    return status == UCS_OK ? 0 : GW_E_DEVICE;
}

/* Its address goes behind those that are there. */
static int worker_new(struct net *net, enum net_way way, struct net_address *head)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_worker_h *worker = &net->workers[way];
    ucp_address_t *address;
    size_t bytes;
    bool fits;

    if (ucp_worker_create(net->context, &params, worker) != UCS_OK ||
        ucp_worker_get_efd(*worker, &net->event_fds[way]) != UCS_OK ||
        ucp_worker_get_address(*worker, &address, &bytes) != UCS_OK)
        return GW_E_DEVICE;
    fits = bytes <= sizeof(net->address) - net->address_bytes;
    if (fits) {
        memcpy(net->address + net->address_bytes, address, bytes);
        net->address_bytes += (uint32_t)bytes;
        head->bytes[way] = (uint32_t)bytes;
    }
    ucp_worker_release_address(*worker, address);
    return fits ? 0 : GW_E_LIMIT;
}

static int workers_new(struct net *net)
{
    struct net_address head = {.secret = net->secret};
    int r = context_new(net);

    net->address_bytes = sizeof(head);
    for (uint32_t way = 0; r == 0 && way < NET_WAYS; way++)
        r = worker_new(net, (enum net_way)way, &head);
    memcpy(net->address, &head, sizeof(head));
    net_address_seal(net->address, net->address_bytes);
    return r == 0 ? net_messages_init(net) : r;
}

void net_address(const struct net *net, uint8_t ret_address[GW_FABRIC_ADDRESS_MAX],
                 uint32_t *ret_bytes)
{
    memcpy(ret_address, net->address, net->address_bytes);
    *ret_bytes = net->address_bytes;
}

static int start(struct net *net)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&net->thread, NULL, net_main, net);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    net->started = r == 0;
    return r == 0 ? 0 : GW_E_LIMIT;
}

int net_new(const struct net_config *config, struct net **ret_net)
{
    struct net *net = calloc(1, sizeof(*net));
    int r;

    if (!net)
        return GW_E_NOMEM;
    net->config = *config;
    net->refuses = true;
    net->fault_at_ns = UINT64_MAX;
    pthread_mutex_init(&net->lock, NULL);
    r = getrandom(&net->secret, sizeof(net->secret), 0) == sizeof(net->secret) ? workers_new(net)
                                                                               : GW_E_INTERNAL;
    if (r == 0)
        r = start(net);
    if (r < 0) {
        net_free(net);
        return r;
    }
    *ret_net = net;
    return 0;
}

struct net *net_free(struct net *net)
{
    if (!net)
        return NULL;
    if (net->started) {
        pthread_mutex_lock(&net->lock);
        net->asked_end = true;
        wake_and_unlock(net);
        pthread_join(net->thread, NULL);
    }
    for (uint32_t way = 0; way < NET_WAYS; way++)
        if (net->workers[way])
            ucp_worker_destroy(net->workers[way]);
    if (net->context)
        ucp_cleanup(net->context);
    pthread_mutex_destroy(&net->lock);
    free(net);
    return NULL;
}

/* ---- inboxes --------------------------------------------------------------------------------- */

void net_inbox_init(struct net_inbox *inbox)
{
    *inbox = (struct net_inbox){.head = NULL};
    pthread_mutex_init(&inbox->lock, NULL);
    pthread_cond_init(&inbox->filled, NULL);
}

void net_inbox_end(struct net_inbox *inbox)
{
    pthread_cond_destroy(&inbox->filled);
    pthread_mutex_destroy(&inbox->lock);
}

struct net_request *net_inbox_take(struct net_inbox *inbox)
{
    struct net_request *request;

    pthread_mutex_lock(&inbox->lock);
    inbox->waiting = true;
    while (!inbox->head)
        pthread_cond_wait(&inbox->filled, &inbox->lock);
    inbox->waiting = false;
    request = inbox->head;
    inbox->head = request->next;
    if (!inbox->head)
        inbox->tail = NULL;
    pthread_mutex_unlock(&inbox->lock);
    return request;
}
