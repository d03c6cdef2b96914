// Package iptables keeps two things in the machine's packet filter that other programs expect of a node agent: the
// chain KUBE-IPTABLES-HINT, by whose table others find out whether the machine uses iptables-legacy or iptables-nft,
// and the rule that drops packets from elsewhere to 127.0.0.0/8.
//
// It uses the machine's programs iptables and ip6tables, and does nothing without them. It owns no other rule and
// removes none: what it makes stays when the agent ends, as with the kubelet. Command nodelet runs it.
package iptables

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"time"
)

const (
	// every is how often the chains are looked for: another program may have removed all rules.
	every = time.Minute
	// patience bounds one call; lockWait is how many seconds of it the program waits for others.
	patience = 30 * time.Second
	lockWait = "5"

	hintChain     = "KUBE-IPTABLES-HINT"
	firewallChain = "KUBE-FIREWALL"
)

// Keeper keeps the chains and the rule.
type Keeper struct {
	log *slog.Logger
	// call runs a program; find reports whether the machine has it.
	call func(ctx context.Context, program string, args ...string) error
	find func(program string) bool
}

// New returns a keeper; Run makes it work.
func New(log *slog.Logger) *Keeper { return &Keeper{log: log, call: call, find: find} }

func find(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

func call(ctx context.Context, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %q: %w: %s", program, args, err, bytes.TrimSpace(out))
	}
	return nil
}

// family is IPv4 or IPv6.
type family struct {
	program string
	// v4 has the rule about 127.0.0.0/8 too.
	v4 bool
	// failed is the last error that was logged.
	failed string
}

// Run makes the chains and the rule, and makes them again when they are gone, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	families := []*family{{program: "iptables", v4: true}, {program: "ip6tables"}}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		found := false
		for _, f := range families {
			if k.find(f.program) {
				found = true
				k.keep(ctx, f)
			}
		}
		if !found {
			k.log.Info("the machine has no iptables, the chain " + hintChain + " is not made")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// keep makes what is missing of one family. An error is logged once.
func (k *Keeper) keep(ctx context.Context, f *family) {
	err := k.ensure(ctx, f)
	switch {
	case err == nil || ctx.Err() != nil:
		f.failed = ""
	case err.Error() != f.failed:
		f.failed = err.Error()
		k.log.Warn("cannot make the iptables chains that other programs expect, trying again", "err", err, "retryIn", every)
	}
}

// ensure makes what is missing. Another program may have removed the rules of one table only.
func (k *Keeper) ensure(ctx context.Context, f *family) error {
	if f.v4 && k.run(ctx, f, "filter", "-C", localnet...) != nil {
		if err := k.firewall(ctx, f); err != nil {
			return err
		}
	}
	if k.run(ctx, f, "mangle", "-S", hintChain) == nil {
		return nil
	}
	return k.run(ctx, f, "mangle", "-N", hintChain)
}

// localnet is the rule that drops packets from elsewhere to 127.0.0.0/8, which kube-proxy may open to node ports. Its
// text is that of kube-proxy's own copy.
var localnet = []string{
	firewallChain, "-m", "comment", "--comment", "block incoming localnet connections",
	"--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8",
	"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
}

// firewall makes the rule localnet, and those that lead to it.
func (k *Keeper) firewall(ctx context.Context, f *family) error {
	if k.run(ctx, f, "filter", "-S", firewallChain) != nil {
		if err := k.run(ctx, f, "filter", "-N", firewallChain); err != nil {
			return err
		}
	}
	for _, rule := range [][]string{
		{"-I", "OUTPUT", "-j", firewallChain},
		{"-I", "INPUT", "-j", firewallChain},
		append([]string{"-A"}, localnet...),
	} {
		if k.run(ctx, f, "filter", "-C", rule[1:]...) == nil {
			continue
		}
		if err := k.run(ctx, f, "filter", rule[0], rule[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) run(ctx context.Context, f *family, table, action string, args ...string) error {
	return k.call(ctx, f.program, append([]string{"-w", lockWait, "-t", table, action}, args...)...)
}
