/* SPDX-License-Identifier: Apache-2.0 */
/* fakegpu-ctl COMMAND...: one line to the control socket of $FAKEGPU_SOCKET, prints the answer. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *path = getenv("FAKEGPU_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char buffer[4096];
    ssize_t bytes;
    bool failed = false, first = true;

    if (!path || argc < 2 ||
        snprintf(address.sun_path, sizeof(address.sun_path), "%s.ctl", path) >=
            (int)sizeof(address.sun_path) ||
        connect(fd, (struct sockaddr *)&address, sizeof(address))) {
        fputs("usage: FAKEGPU_SOCKET=PATH fakegpu-ctl COMMAND... (a server must be there)\n",
              stderr);
        return 2;
    }
    for (int i = 1; i < argc; i++)
        dprintf(fd, "%s%s", argv[i], i + 1 < argc ? " " : "\n");
    shutdown(fd, SHUT_WR);
    while ((bytes = read(fd, buffer, sizeof(buffer))) > 0) {
        if (first)
            failed = bytes > 5 && !memcmp(buffer, "error", 5);
        first = false;
        fwrite(buffer, 1, (size_t)bytes, stdout);
    }
    return failed ? 1 : 0;
}
