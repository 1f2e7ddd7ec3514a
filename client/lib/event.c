/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's readable descriptor for event loops. It is an epoll descriptor over two things: an
 * eventfd that the engine writes when it raises a word of ours, and the control socket, which turns
 * readable when the engine closes or dies. So it needs no thread here. Any thread.
 */
#include "client/lib/event.h"

#include "client/lib/err.h"

void event_close(gw_job *job)
{
    fork_fd_close(&job->guard, &job->epoll);
    fork_fd_close(&job->guard, &job->event);
}

int gw_job_event_fd(gw_job *job, int *ret_fd)
{
    int r = job_check(job);

    (void)ret_fd;
    return r < 0 ? r : err_set(GW_E_UNIMPLEMENTED, "this engine raises no descriptor");
}

int gw_job_event_clear(gw_job *job)
{
    return job_enter(job);
}
