package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// TestRun checks that nothing is run without the programs, that one family's trouble does not keep the other from its
// chain, and that what another program has removed is made again.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		hint := map[string]bool{}
		var calls []string
		k := New(slog.New(slog.NewTextHandler(t.Output(), nil)))
		k.find = func(string) bool { return true }
		call := func(_ context.Context, _, program string, args ...string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, program+" "+strings.Join(args[4:], " "))
			switch {
			case program == "iptables" && args[3] == "filter" && args[4] == "-N":
				return "", errors.New("no such table")
			case args[4] == "-N":
				hint[program] = true
			case args[4] == "-C", args[4] == "-S" && !hint[program]:
				return "", exits(t, 1)
			}
			return "", nil
		}
		for _, f := range k.families {
			f.call = call
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		synctest.Wait()
		mu.Lock()
		if hint["iptables"] || !hint["ip6tables"] {
			t.Errorf("got chains %v, want that of ip6tables alone", hint)
		}
		delete(hint, "ip6tables")
		mu.Unlock()
		time.Sleep(every)
		synctest.Wait()
		if n := len(slices.DeleteFunc(calls, func(c string) bool { return c != "ip6tables -N KUBE-IPTABLES-HINT" })); n != 2 {
			t.Errorf("the chain was made %d times, want 2", n)
		}
		cancel()
		<-done

		calls, k.find = nil, func(string) bool { return false }
		k.Run(t.Context())
		if len(calls) > 0 {
			t.Errorf("got calls %q without the programs", calls)
		}
	})
}

// TestLooks checks that a jump is looked for each minute, and all else each ten minutes and when the jump is gone.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, chains atomic.Int32
		var flushed atomic.Bool
		k := New(slog.New(slog.NewTextHandler(t.Output(), nil)))
		k.find = func(string) bool { return true }
		for _, f := range k.families {
			f.call = func(_ context.Context, _, _ string, args ...string) (string, error) {
				calls.Add(1)
				if args[4] == "-N" && args[5] == hintChain {
					chains.Add(1)
				}
				if flushed.Load() && (args[4] == "-C" || args[4] == "-S") {
					return "", exits(t, 1)
				}
				return "", nil
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		synctest.Wait()
		check := func(when string, want int32) {
			t.Helper()
			if got := calls.Load(); got != want {
				t.Errorf("%s: got %d calls, want %d", when, got, want)
			}
		}
		check("at the start, three for the rules and three for the chains", 6)
		time.Sleep((allEvery - 1) * every)
		synctest.Wait()
		check("nothing has changed", 6+allEvery-1)
		time.Sleep(every)
		synctest.Wait()
		check("after ten minutes", 6+allEvery-1+6)
		flushed.Store(true)
		time.Sleep(every)
		synctest.Wait()
		if got := chains.Load(); got != 2 {
			t.Errorf("a minute after a flush: got %d chains made, want 2", got)
		}
		cancel()
		<-done
	})
}

// TestBusy checks that while another program holds the lock of iptables nothing counts as missing and is made again.
func TestBusy(t *testing.T) {
	t.Parallel()
	for _, look := range []string{"-C", "-S"} {
		busy := exits(t, 4)
		var changes []string
		f := &family{Tool: IPv4, v4: true}
		f.call = func(_ context.Context, _, _ string, args ...string) (string, error) {
			switch {
			case args[4] == look:
				return "", busy
			case args[4] != "-C" && args[4] != "-S":
				changes = append(changes, strings.Join(args[4:], " "))
			}
			return "", nil
		}
		if _, err := f.ensure(t.Context(), true); !errors.Is(err, busy) || len(changes) > 0 {
			t.Errorf("%s is busy: got %q and %v, want that error and no change", look, changes, err)
		}
		if _, err := f.ensure(t.Context(), false); look == "-C" && !errors.Is(err, busy) || len(changes) > 0 {
			t.Errorf("%s of the jump is busy: got %q and %v, want that error and no change", look, changes, err)
		}
		if err := f.Ensure(t.Context(), "nat", "-A", "OUTPUT"); look == "-C" && !errors.Is(err, busy) || len(changes) > 0 {
			t.Errorf("%s of a rule is busy: got %q and %v, want that error and no rule", look, changes, err)
		}
	}
}

// exits returns the error of a program that ends with this exit code.
func exits(t *testing.T, code int) error {
	t.Helper()
	err := exec.Command("sh", "-c", fmt.Sprint("exit ", code)).Run()
	if err == nil {
		t.Fatal("the shell has ended without an error")
	}
	return err
}

// insideEnv marks the process that runs in a network namespace of its own.
const insideEnv = "NODELET_TEST_IPTABLES"

// TestRealTables makes the chains and the rule with the machine's iptables, in a network namespace of its own: twice,
// and again after they were removed.
func TestRealTables(t *testing.T) {
	if os.Getenv(insideEnv) == "" {
		testbed.NeedPrograms(t, map[string]string{"iptables": "iptables", "unshare": "util-linux"})
		cmd := exec.Command("unshare", "--net", os.Args[0], "-test.run=^TestRealTables$", "-test.v")
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	show := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("iptables", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	f := &family{Tool: IPv4, v4: true}
	for _, round := range []string{"first", "again", "after the hint was removed", "after all was removed",
		"after the filter table was flushed", "after a restore of another filter table", "after INPUT was flushed",
		"after OUTPUT was flushed", "after the chain was flushed"} {
		all := false
		switch round {
		case "after the hint was removed":
			show("-t", "mangle", "-X", hintChain)
			all = true
		case "after all was removed":
			show("-F")
			show("-X")
			show("-t", "mangle", "-X")
		case "after the filter table was flushed":
			show("-F")
		case "after a restore of another filter table":
			restore := exec.Command("iptables-restore")
			restore.Stdin = strings.NewReader("*filter\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n")
			if out, err := restore.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		case "after INPUT was flushed":
			show("-F", "INPUT")
		case "after OUTPUT was flushed":
			show("-F", "OUTPUT")
			all = true
		case "after the chain was flushed":
			show("-F", firewallChain)
			all = true
		}
		if _, err := f.ensure(t.Context(), all); err != nil {
			t.Fatalf("%s: %v", round, err)
		}
		rules := show("-S")
		for _, want := range []string{"-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL",
			"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" " +
				"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"} {
			if n := strings.Count(rules, want+"\n"); n != 1 {
				t.Errorf("%s: got %d times %q in\n%s", round, n, want, rules)
			}
		}
		if got := show("-t", "mangle", "-S", hintChain); !strings.Contains(got, "-N KUBE-IPTABLES-HINT") {
			t.Errorf("%s: got %q, want the hint chain", round, got)
		}
	}
}
