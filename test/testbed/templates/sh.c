// The suite's busybox is newer than Debian's, whose shell drops environment variables that are no shell names. This stands
// in its place: bash keeps them, and busybox has the words of its error messages.
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
	for (char **e = environ; *e; e++)
		if (strcspn(*e, "-.") < strcspn(*e, "=")) {
			execv("/bin/bash", argv);
			return 126;
		}
	argv[0] = "/bin/sh";
	execv("/bin/busybox", argv);
	return 126;
}
