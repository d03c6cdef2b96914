// Package iptables runs the machine's programs iptables and ip6tables, for package cni too. It keeps two things in the
// machine's packet filter that other programs expect of a node agent: the chain KUBE-IPTABLES-HINT, by whose table
// others find out whether the machine uses iptables-legacy or iptables-nft, and the rule that drops packets from
// elsewhere to 127.0.0.0/8.
//
// It keeps nothing without these programs. It owns no other rule and removes none: what it makes stays when the agent
// ends, as with the kubelet. cmd/nodelet runs a Keeper; package cni runs the programs for its own rules with a Tool.
//
// A crash may leave a part of the chains and the rule. The next start looks for all of it and makes what is missing.
package iptables

import (
	"context"
	"log/slog"
	"os/exec"
	"time"

	"github.com/nodelet/nodelet/internal/backoff"
	"github.com/nodelet/nodelet/internal/periodic"
)

const (
	// every is how often the jump from INPUT is looked for: another program may have removed all rules. All else is looked
	// for as well when it is gone, and otherwise each allEvery-th time: each look at a table runs a program.
	every    = time.Minute
	allEvery = 10

	hintChain     = "KUBE-IPTABLES-HINT"
	firewallChain = "KUBE-FIREWALL"
)

// Keeper keeps the chains and the rule.
type Keeper struct {
	log      *slog.Logger
	families []*family
	// find reports whether the machine has a program.
	find func(program string) bool
}

// New returns a keeper; Run makes it work.
func New(log *slog.Logger) *Keeper {
	return &Keeper{log: log, families: []*family{{Tool: IPv4, v4: true}, {Tool: IPv6}}, find: find}
}

func find(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// family is IPv4 or IPv6.
type family struct {
	Tool
	// v4 has the rule about 127.0.0.0/8 too.
	v4 bool
	// failed is the last error that was logged.
	failed string
}

// Run makes the chains and the rule, and makes them again when they are gone, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for round := 0; ; round++ {
		found, all := false, round%allEvery == 0
		for _, f := range k.families {
			if k.find(f.program) {
				found = true
				all = k.keep(ctx, f, all)
			}
		}
		if !found {
			k.log.Info("the machine has no iptables, not creating the chain " + hintChain)
			return
		}
		if !backoff.Sleep(ctx, periodic.Until(every)) {
			return
		}
	}
}

// keep makes what is missing of one family, and reports whether it looked for all; see ensure. An error is logged once.
func (k *Keeper) keep(ctx context.Context, f *family, all bool) bool {
	all, err := f.ensure(ctx, all || f.failed != "")
	switch {
	case err == nil || ctx.Err() != nil:
		f.failed = ""
	case err.Error() != f.failed:
		f.failed = err.Error()
		k.log.Warn("cannot create the iptables chains that other programs expect, trying again", "err", err, "retryIn", every)
	}
	return all
}

// ensure makes all that is missing, if all is set or the jump from INPUT is missing: another program may have removed
// the rules of one table or chain only. It reports whether one of the two was so, which holds for other families too.
func (f *family) ensure(ctx context.Context, all bool) (bool, error) {
	if f.v4 && !all {
		_, found, err := f.Look(ctx, "filter", "-C", "INPUT", "-j", firewallChain)
		if err != nil || found {
			return false, err
		}
		all = true
	}
	if !all {
		return false, nil
	}
	if f.v4 {
		if err := f.firewall(ctx); err != nil {
			return true, err
		}
	}
	return true, f.ensureChain(ctx, "mangle", hintChain)
}

func (f *family) ensureChain(ctx context.Context, table, chain string) error {
	_, found, err := f.Look(ctx, table, "-S", chain)
	if err == nil && !found {
		_, err = f.Run(ctx, table, "-N", chain)
	}
	return err
}

// localnet is the rule that drops packets from elsewhere to 127.0.0.0/8, which kube-proxy may open to node ports. Its
// text is that of kube-proxy's own copy.
var localnet = []string{
	firewallChain, "-m", "comment", "--comment", "block incoming localnet connections",
	"--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8",
	"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
}

// firewall makes the rule localnet and those that lead to it, unless they exist. The jump from INPUT comes last: it
// says that the others have been made.
func (f *family) firewall(ctx context.Context) error {
	if err := f.ensureChain(ctx, "filter", firewallChain); err != nil {
		return err
	}
	if err := f.Ensure(ctx, "filter", "-A", localnet...); err != nil {
		return err
	}
	for _, from := range []string{"OUTPUT", "INPUT"} {
		if err := f.Ensure(ctx, "filter", "-I", from, "-j", firewallChain); err != nil {
			return err
		}
	}
	return nil
}
