/* The first process of a pod sandbox: it holds the namespaces, reaps orphans, and ends at once when told to.
 * With -v it only says what it is: kubeadm runs it so, to see whether a Job ends. */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	sigset_t set;
	int sig;

	if (argc > 1 && strcmp(argv[1], "-v") == 0)
		return puts("pause of the testbed") < 0;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	/* Blocked signals queue up even for PID 1, which ignores whatever it has no handler for. */
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
		return 1;
	for (;;) {
		if (sigwait(&set, &sig) != 0)
			continue;
		if (sig != SIGCHLD)
			return 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
