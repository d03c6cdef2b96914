package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/test/known"
)

// compare lists the differences between the observations of two agents, one per line: the pod, the kind of fact, and
// what only the kubelet (-) or only nodelet (+) has.
func compare(kubelet, nodelet sightings) (found []string) {
	for _, pod := range slices.Sorted(maps.Keys(kubelet)) {
		a, b := kubelet[pod], nodelet[pod]
		if b == nil {
			found = append(found, pod+" pod -was seen")
			continue
		}
		if !a.Reached || !b.Reached { // with both, the pod does not test what it is for
			found = append(found, fmt.Sprintf("%s reached -%v", pod, a.Reached), fmt.Sprintf("%s reached +%v", pod, b.Reached))
		}
		fa, fb := factsOf(a), factsOf(b)
		for _, kind := range union(fa.sets, fb.sets) {
			for _, line := range setDifferences(kind, fa.sets[kind], fb.sets[kind]) {
				found = append(found, pod+" "+kind+" "+line)
			}
		}
		for _, kind := range union(fa.sequences, fb.sequences) {
			x, y := fa.sequences[kind], fb.sequences[kind]
			// A pod that restarts was deleted at some point of its sequences. They have begun.
			if n := min(len(x), len(y)); n > 0 && strings.HasPrefix(a.Until, "restarts") {
				x, y = x[:n], y[:n]
			}
			if !slices.Equal(x, y) {
				found = append(found, pod+" "+kind+" -"+strings.Join(x, " > "), pod+" "+kind+" +"+strings.Join(y, " > "))
			}
		}
	}
	return found
}

// setDifferences lists what only one agent has. A configuration that the other one has not made is one line.
func setDifferences(kind string, kubelet, nodelet []string) (found []string) {
	if strings.HasPrefix(kind, "config ") && len(kubelet) == 0 {
		return []string{"+was made"}
	}
	if strings.HasPrefix(kind, "config ") && len(nodelet) == 0 {
		return []string{"-was made"}
	}
	for _, line := range kubelet {
		if !slices.Contains(nodelet, line) {
			found = append(found, "-"+line)
		}
	}
	for _, line := range nodelet {
		if !slices.Contains(kubelet, line) {
			found = append(found, "+"+line)
		}
	}
	return found
}

func union(a, b map[string][]string) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

// knownDifference is a pattern of expected differences with its reason.
type knownDifference struct {
	pattern, reason string
	matches         *regexp.Regexp
	used            int
}

type knownDifferences []*knownDifference

// readKnown reads known.txt: a comment gives the reason of the patterns below it, up to a blank line. In a pattern,
// * stands for any text.
func readKnown(file string) (all knownDifferences, err error) {
	err = known.ReadFile(file, all.add)
	return all, err
}

func parseKnown(r io.Reader) (all knownDifferences, err error) {
	err = known.Read(r, all.add)
	return all, err
}

// add adds one entry of known.txt.
func (k *knownDifferences) add(line, reason string) error {
	if reason == "" {
		return errors.New("want a comment with the reason above it")
	}
	pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(line), `\*`, ".*") + "$"
	*k = append(*k, &knownDifference{pattern: line, reason: reason, matches: regexp.MustCompile(pattern)})
	return nil
}

// spoiled matches the differences of a pod that does not test what it is for. No pattern stands for them.
var spoiled = regexp.MustCompile(`^\S+ (pod|reached) [-+]`)

// of returns the pattern that stands for a difference; nil if there is none.
func (k knownDifferences) of(d string) *knownDifference {
	i := slices.IndexFunc(k, func(known *knownDifference) bool { return known.matches.MatchString(d) })
	if i < 0 || spoiled.MatchString(d) {
		return nil
	}
	return k[i]
}

// judge prints known differences by their reasons, and returns an error for all others. If all pods ran, it also
// prints the patterns that match nothing.
func (k knownDifferences) judge(w io.Writer, found []string, pods int, all bool) error {
	var unknown []string
	for _, d := range found {
		if reason := k.of(d); reason != nil {
			reason.used++
		} else {
			unknown = append(unknown, d)
		}
	}
	fmt.Fprintf(w, "%d pods, %d differences, %d of them known\n", pods, len(found), len(found)-len(unknown))
	for _, known := range k {
		switch {
		case known.used > 0:
			fmt.Fprintf(w, "%4d  %s  (%s)\n", known.used, known.pattern, known.reason)
		case all:
			fmt.Fprintf(w, "gone  %s: take it out of known.txt\n", known.pattern)
		}
	}
	for _, d := range unknown {
		fmt.Fprintf(w, "NEW   %.300s\n", d)
	}
	if len(unknown) > 0 {
		return fmt.Errorf("got %d unknown differences", len(unknown))
	}
	return nil
}
