/*
 * The process that holds a Pod's namespaces open: it sleeps, reaps children
 * that were left to it, and ends when it is told to.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig) { _exit(sig == SIGINT || sig == SIGTERM ? 0 : 1); }

static void reap(int sig) {
	int saved = errno;
	(void)sig;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	errno = saved;
}

int main(void) {
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP | SA_RESTART};

	if (sigaction(SIGINT, &on_end, NULL) || sigaction(SIGTERM, &on_end, NULL) ||
	    sigaction(SIGCHLD, &on_child, NULL))
		return EXIT_FAILURE;
	for (;;)
		pause();
}
