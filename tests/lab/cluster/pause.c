/* The process that holds a pod's namespaces: ends when it is told to, and collects what the pod's processes leave. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void)
{
    sigset_t awaited;
    int received;

    sigemptyset(&awaited);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    sigaddset(&awaited, SIGCHLD);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    while (sigwait(&awaited, &received) == 0 && received == SIGCHLD)
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    return 0;
}
