package program_test

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/program"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestOutput checks that the first bytes are kept, and that each write beyond them is reported.
func TestOutput(t *testing.T) {
	overflows := 0
	o := program.Output{Limit: 5, Overflow: func() { overflows++ }}
	for _, text := range []string{"abc", "de", "fgh", "i"} {
		if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("write %q: got %d, %v, want %d", text, n, err, len(text))
		}
	}
	if got := string(o.Bytes()); got != "abcde" || overflows != 2 {
		t.Errorf("got %q and %d overflows, want abcde and 2", got, overflows)
	}
}

// TestKillsChildren checks that the end of the context also ends what the program has started.
func TestKillsChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := program.Command(ctx, "/bin/sh", "-c", "sleep 1000 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	child, numErr := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || numErr != nil {
		t.Fatalf("read the child's PID: got %q, %v, %v", line, err, numErr)
	}
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("killed program: got no error, want one")
	}
	waittest.Until(t, fmt.Sprintf("child %d has ended", child), func() bool {
		return unix.Kill(child, 0) == unix.ESRCH
	})
}
