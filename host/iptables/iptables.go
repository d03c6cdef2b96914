// Package iptables runs the machine's programs iptables and ip6tables, for package cni too. It keeps two things in the
// machine's packet filter that other programs expect of a node agent: the chain KUBE-IPTABLES-HINT, by whose table
// others find out whether the machine uses iptables-legacy or iptables-nft, and the rule that drops packets from
// elsewhere to 127.0.0.0/8.
//
// It keeps nothing without these programs. It owns no other rule and removes none: what it makes stays when the agent
// ends, as with the kubelet. Command nodelet runs it.
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
	// every is how often the rule is looked for: another program may have removed all rules. The chains are looked for as
	// well when it is gone, and otherwise each chainsEvery-th time: each look at a table runs a program.
	every       = time.Minute
	chainsEvery = 10

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
		found, chains := false, round%chainsEvery == 0
		for _, f := range k.families {
			if k.find(f.program) {
				found = true
				chains = k.keep(ctx, f, chains) || chains
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

// keep makes what is missing of one family, see ensure, and reports whether the rule was. An error is logged once.
func (k *Keeper) keep(ctx context.Context, f *family, chains bool) (made bool) {
	made, err := f.ensure(ctx, chains || f.failed != "")
	switch {
	case err == nil || ctx.Err() != nil:
		f.failed = ""
	case err.Error() != f.failed:
		f.failed = err.Error()
		k.log.Warn("cannot create the iptables chains that other programs expect, trying again", "err", err, "retryIn", every)
	}
	return made
}

// ensure makes the rule if it is missing, and reports whether it was. Then, or if chains is set, it makes the chain,
// too: another program may have removed the rules of one table only.
func (f *family) ensure(ctx context.Context, chains bool) (made bool, err error) {
	if f.v4 {
		if made, err = f.firewall(ctx); err != nil {
			return made, err
		}
	}
	if made || chains {
		err = f.ensureChain(ctx, "mangle", hintChain)
	}
	return made, err
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

// firewall makes the rule localnet, and those that lead to it, unless it exists. It reports whether it had to.
func (f *family) firewall(ctx context.Context) (made bool, err error) {
	if _, found, err := f.Look(ctx, "filter", append([]string{"-C"}, localnet...)...); err != nil || found {
		return false, err
	}
	if err := f.ensureChain(ctx, "filter", firewallChain); err != nil {
		return true, err
	}
	for _, from := range []string{"OUTPUT", "INPUT"} {
		if err := f.Ensure(ctx, "filter", "-I", from, "-j", firewallChain); err != nil {
			return true, err
		}
	}
	return true, f.Ensure(ctx, "filter", "-A", localnet...)
}
