package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodelet/nodelet/test/testbed"
)

// insideScenario runs a test program of this repository in a machine with cgroup v2 and systemd: its testbed, with a
// control plane, is started in the machine. The machine sees this machine's source tree, built programs and Go modules
// at the same places, below layers of its own, so that nothing is written to this machine but the reports.
type insideScenario struct {
	*scenario
	uml       *umlMachine
	program   insideProgram
	args      []string
	reportsTo string // a directory of this machine
	goCommand string
}

// insideProgram is a test program that can run in the machine.
type insideProgram struct {
	// pkg is its package. A package of tests is built with the tag e2e.
	pkg   string
	tests bool
	// dir is where it runs, relative to the source tree.
	dir string
	// args are those that it always gets.
	args []string
	// cgroupfs: its testbed has the cgroup driver cgroupfs and not systemd.
	cgroupfs bool
	// topology: it needs the sockets, cores and NUMA nodes of the machine.
	topology bool
	// needs builds what its testbed runs, before the machine boots, and returns the archives of its images.
	needs func(context.Context, *testbed.Cache) (images []string, err error)
}

// insidePrograms are the values of the flag -inside.
var insidePrograms = map[string]insideProgram{
	"root": {
		pkg:   "./test/e2e",
		tests: true,
		dir:   "test/e2e",
		args:  []string{"-test.v", "-test.timeout=" + insideLimit.String()},
		needs: rootNeeds,
	},
	"conformance": {
		pkg:   "./test/conformance",
		args:  []string{"-reports=" + reportsInside},
		needs: suiteNeeds("suite"),
	},
	"node-e2e": {
		pkg:      "./test/conformance",
		args:     []string{"-node", "-reports=" + reportsInside},
		cgroupfs: true, // its specs see a part of the cgroup tree as the whole, which systemd does not know
		topology: true,
		needs:    suiteNeeds("node-suite"),
	},
	"differential": {
		pkg:   "./test/differential",
		args:  []string{"-reports=" + reportsInside},
		needs: testbedNeeds,
	},
}

// passedOn are the environment variables that the programs in the machine get if they are set here.
var passedOn = []string{
	"AGENT", "SUITE", "FOCUS", "SKIP", "LABEL", "ONLY", "RUNTIME", "TIMEOUT", "RESUME",
	"NODELET_E2E_RUNTIME", "NODELET_E2E_NETWORK",
}

const (
	// insideLimit is how long a program may run; then it is interrupted. The differential test takes an hour.
	insideLimit = 2 * time.Hour
	// insideEnd is how long an interrupted program may take to end, so that its reports can be fetched.
	insideEnd = 3 * time.Minute
)

// reportsInside is the machine's directory for the reports of a program; it appears in reportsHere when the program
// ends.
const (
	reportsInside = "/var/lib/reports"
	reportsHere   = ".cache/vm2"
)

// insideOptions are those of the testbeds that the programs start.
func insideOptions() testbed.Options {
	return testbed.Options{
		Agent:    testbed.Kubelet,
		Runtime:  cmp.Or(os.Getenv("RUNTIME"), os.Getenv("NODELET_E2E_RUNTIME")),
		Progress: os.Stdout,
	}
}

// rootNeeds builds a testbed and fetches the programs of the tests.
func rootNeeds(ctx context.Context, cache *testbed.Cache) (images []string, err error) {
	if err := cache.TestPrograms(ctx); err != nil {
		return nil, err
	}
	return testbedNeeds(ctx, cache)
}

// testbedNeeds builds a testbed alone.
func testbedNeeds(ctx context.Context, cache *testbed.Cache) (images []string, err error) {
	if err := testbed.Build(ctx, insideOptions()); err != nil {
		return nil, err
	}
	return cache.Images(ctx)
}

// suiteNeeds returns a function that also builds a suite of Kubernetes and its images.
func suiteNeeds(module string) func(context.Context, *testbed.Cache) ([]string, error) {
	return func(ctx context.Context, cache *testbed.Cache) (images []string, err error) {
		o := insideOptions()
		o.KubeProxy, o.DNS = true, true
		if err := testbed.Build(ctx, o); err != nil {
			return nil, err
		}
		if _, err := cache.Programs(ctx, module); err != nil {
			return nil, err
		}
		images, err = cache.Images(ctx)
		if err != nil {
			return nil, err
		}
		more, err := cache.SuiteImages(ctx) // after the others, in place of those with the same names
		if err != nil {
			return nil, err
		}
		if os.Getenv("SUITE") == "conformance" { // built here, they are kept
			if _, err := cache.AggregatorImages(ctx); err != nil {
				return nil, err
			}
		}
		return append(images, more...), nil
	}
}

// insideFiles are the program.
func insideFiles(ctx context.Context, dir string, p insideProgram) ([]string, error) {
	program := filepath.Join(dir, "program")
	args := []string{"build", "-o", program, p.pkg}
	if p.tests {
		args = []string{"test", "-c", "-tags", "e2e", "-o", program, p.pkg}
	}
	return []string{program}, run(ctx, "", "go", args...)
}

// argumentLists returns the arguments of each program that runs at the same time.
func argumentLists(args []string) (lists [][]string) {
	for {
		i := slices.Index(args, "--")
		if i < 0 {
			return append(lists, args)
		}
		lists = append(lists, args[:i])
		args = args[i+1:]
	}
}

// newInside makes a machine for each list of arguments. Each has what a program in it needs: memory, a view of this
// machine, and the disk with images.
func newInside(ctx context.Context, parts *parts, dir, payload string, p insideProgram) (machines []box, err error) {
	cache, err := testbed.OpenCache(os.Stdout)
	if err != nil {
		return nil, err
	}
	images, err := p.needs(ctx, cache)
	if err != nil {
		return nil, err
	}
	disk, err := imagesDisk(ctx, cache, parts.dir, insideOptions().Runtime, images)
	if err != nil {
		return nil, err
	}
	processors, memory := "", "10G" // memory for a control plane and its etcd as well
	lists := argumentLists(flag.Args())
	if len(lists) > 1 {
		processors, memory = "1", "5G" // this machine has few
	}
	for i := range lists {
		m := &umlMachine{kernel: parts.kernel, disk: parts.disk, dir: filepath.Join(dir, strconv.Itoa(i+1)), payload: payload,
			memory: memory, processors: processors, images: disk}
		if err := errors.Join(os.Mkdir(m.dir, 0o755), os.Mkdir(m.hostView(), 0o755),
			os.Mkdir(filepath.Join(m.dir, "out"), 0o755)); err != nil {
			return nil, err
		}
		machines = append(machines, m)
	}
	return machines, nil
}

// proveInside runs a program with each list of arguments, in machines of their own at the same time.
func proveInside(machines []box, p insideProgram, skip *regexp.Regexp) error {
	var all errgroup.Group
	lists := argumentLists(flag.Args())
	for i, args := range lists {
		s := &insideScenario{scenario: &scenario{m: machines[i], began: time.Now(), skip: skip},
			uml: machines[i].(*umlMachine), program: p, args: args, reportsTo: reportsHere}
		if len(lists) > 1 {
			s.label = strconv.Itoa(i+1) + ": "
			s.reportsTo = filepath.Join(reportsHere, strconv.Itoa(i+1))
		}
		all.Go(func() error {
			runtime.LockOSThread() // the machine dies with the thread that started it
			if err := s.prove(); err != nil {
				return fmt.Errorf("%s%w", s.label, err)
			}
			return nil
		})
	}
	return all.Wait()
}

func (s *insideScenario) prove() error {
	return s.inOrder([]step{
		{"boot", func() error { return s.m.start(bootLimit) }},
		{"this machine's files", s.files},
		{"program", s.runProgram},
		{"power-off", s.powerOff},
	})
}

// powerOff also prints what the run would take at least on an idle machine.
func (s *insideScenario) powerOff() error {
	if err := s.uml.powerOff(); err != nil {
		return err
	}
	s.say("the machine has used %s of processor time", s.uml.used.Round(time.Second))
	return nil
}

// files shows the machine what the program needs of this machine.
func (s *insideScenario) files() error {
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("ask the go command for its directories: %w", err)
	}
	s.goCommand = filepath.Join(strings.Fields(string(out))[0], "bin/go")
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	tree, err := os.Getwd()
	if err != nil {
		return err
	}
	built := cmp.Or(os.Getenv(testbed.CacheEnv), filepath.Join(cache, "nodelet-testbed"))
	commands := []string{
		mountPayload,
		"mkdir -p /host && mount -r -t hostfs none /host -o /host",
		"systemctl stop containerd",
		"mkdir -p " + stateInside + " && mount /dev/ubdb " + stateInside,
		"fallocate -l 512M /swap && chmod 600 /swap && mkswap -q /swap && swapon /swap", // for tests of LimitedSwap
	}
	for _, dir := range append(strings.Fields(string(out)), tree, built) {
		commands = append(commands, "d="+dir+" l=/var/lib/layers/$d; mkdir -p $d $l/upper $l/work && "+
			"mount -t overlay overlay $d -o lowerdir=/host$d,upperdir=$l/upper,workdir=$l/work")
	}
	if s.program.topology {
		script, err := guest.ReadFile("guest/topology.sh")
		if err != nil {
			return err
		}
		commands = append(commands, string(script))
	}
	return s.need(commands...)
}

// runProgram prints the program's output while it runs, and fetches its reports.
func (s *insideScenario) runProgram() error {
	tree, err := os.Getwd()
	if err != nil {
		return err
	}
	log := filepath.Join(s.uml.dir, "out", "program.log")
	if err := s.need("mkdir -p /out " + reportsInside + " && mount -t hostfs none /out -o /out"); err != nil {
		return err
	}
	stop := follow(log, &labelled{label: s.label, to: os.Stdout})
	defer stop()
	driver := testbed.DriverSystemd
	if s.program.cgroupfs {
		driver = testbed.DriverCgroupfs
	}
	environment := []string{
		"HOME=/root", "PATH=$PATH:" + filepath.Dir(s.goCommand), "GOPROXY=off", "GOFLAGS=" + os.Getenv("GOFLAGS"),
		testbed.DriverEnv + "=" + driver, testbed.StateEnv + "=" + stateInside,
		testbed.UnpackedEnv + "=" + unpackedInside, testbed.LogsEnv + "=" + reportsInside,
	}
	for _, name := range passedOn {
		if value, ok := os.LookupEnv(name); ok {
			environment = append(environment, name+"="+quote(value))
		}
	}
	args := slices.Concat(s.program.args, s.args)
	for i, a := range args {
		args[i] = quote(a)
	}
	_, err = s.m.sh(insideLimit+2*insideEnd, fmt.Sprintf(
		"cd %s && env %s timeout -s INT -k %.0f %.0f /payload/program %s >/out/program.log 2>&1",
		filepath.Join(tree, s.program.dir), strings.Join(environment, " "), insideEnd.Seconds(), insideLimit.Seconds(),
		strings.Join(args, " ")))
	return errors.Join(err, s.reports())
}

// quote makes one word of the shell of a text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// reports fetches what the program has left in its directory of reports.
func (s *insideScenario) reports() error {
	out := filepath.Join(s.uml.dir, "out/reports")
	if err := s.need("cp -r " + reportsInside + " /out/reports"); err != nil {
		return err
	}
	if err := os.MkdirAll(s.reportsTo, 0o755); err != nil {
		return err
	}
	return run(context.Background(), "", "cp", "-r", out+"/.", s.reportsTo)
}

// labelled writes whole lines, each behind a label.
type labelled struct {
	label string
	to    io.Writer
	rest  []byte
}

func (l *labelled) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte{'\n'})
		if !ok {
			return len(p), nil
		}
		if _, err := fmt.Fprintf(l.to, "%s%s\n", l.label, line); err != nil {
			return 0, err
		}
		l.rest = rest
	}
}

// follow copies a file that grows, until it is stopped.
func follow(path string, to io.Writer) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var offset int64
		for more := true; more; {
			select {
			case <-end:
				more = false
			case <-time.After(time.Second):
			}
			f, err := os.Open(path)
			if err != nil {
				continue
			}
			n, _ := io.Copy(to, io.NewSectionReader(f, offset, 1<<40))
			offset += n
			f.Close()
		}
	}()
	return func() { close(end); <-ended }
}
