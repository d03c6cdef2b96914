package plan

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent/podstate"
)

var update = flag.Bool("update", false, "write what the scripts in testdata print into them")

// TestScripts runs the scripts in testdata. A script is a series of blocks with blank lines between them: a command,
// its input where it has one, a line "----", and what it prints. Lines that begin with # are for readers. The
// commands are in the map below; most of them end with a turn of the agent's loop, and print the plan that comes of
// it.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("read the scripts: got none, %v, want some", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s: got another text than want; look at the difference after go test -update\n%s", file,
				firstDifference(string(text), got))
		})
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d\n  want %s\n  got  %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(b), len(a))
}

// script is a world that is driven by commands.
type script struct {
	t    *testing.T
	w    *world
	args []string
	// input are the lines below the command.
	input string
	// shown is the status as it was last printed, by line.
	shown []string
	out   strings.Builder
}

var commands = map[string]func(*script){
	"pod":   (*script).pod,    // a new pod from YAML, on a clean node
	"up":    (*script).up,     // "pod" and "run", of which only the end is printed: a pod that has started before
	"spec":  (*script).spec,   // the pod has changed: its new YAML
	"shown": (*script).status, // what the API shows of the pod, in YAML
	// what is on the node: sandbox <attempt>, container <name> <attempt> running|exit=<n>, volume <name>
	"node":    (*script).node,
	"run":     (*script).run,     // all steps succeed, until none is left
	"begin":   (*script).begin,   // the steps of the plan begin
	"ok":      (*script).ok,      // the steps that begin so succeed; input of a mount: refresh in <duration>
	"fail":    (*script).fail,    // the step that begins so fails: fail <step>, input: reason and message
	"lost":    (*script).lost,    // the step that begins so does its work, but its answer is lost
	"late":    (*script).late,    // the answer is lost and the work is done later, by "arrive"
	"arrive":  (*script).arrive,  // the late work is done
	"exit":    (*script).exit,    // exit <container> <code> [<reason>]
	"crio":    (*script).crio,    // the runtime removes an instance that fails to start, as CRI-O does
	"unfit":   (*script).unfit,   // a sandbox is created, but is not usable: unfit dead|no-address
	"die":     (*script).die,     // the sandbox ends, and all in it
	"pause":   (*script).pause,   // the sandbox is not ready any more, and its containers go on
	"unknown": (*script).unknown, // the runtime reports an unknown state of a container
	"known":   (*script).known,   // the runtime knows again that the container runs
	"forget":  (*script).forget,  // the runtime forgets a container: forget <name or ID>
	"probe":   (*script).probe,   // probe <container> startup|liveness|readiness=ok|fail
	"advance": (*script).advance, // time passes: advance <duration>
	"restart": (*script).restart, // the agent is killed and starts again
	"api":     (*script).api,     // whether published statuses reach the API: api up|behind
	"objects": (*script).objects, // objects that the pod refers to have changed
	"devices": (*script).devices, // whether the devices that the pod has can be used: devices [<why not>]
	"delete":  (*script).delete,  // the pod is deleted: delete grace=<seconds>
	"gone":    (*script).gone,    // no source knows the pod any more: gone grace=<seconds>
	"evict":   (*script).evict,   // evict <grace seconds> <reason> <message>
	"reclaim": (*script).reclaim, // the node is short of disk
	"reject":  (*script).reject,  // admission refuses the pod: reject <reason> <message>
}

func runScript(t *testing.T, text string) string {
	s := &script{t: t}
	var blocks []string
	for block := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n\n") {
		if block = strings.Trim(block, "\n"); block != "" {
			blocks = append(blocks, s.block(block))
		}
	}
	return strings.Join(blocks, "\n\n") + "\n"
}

// block runs one command and returns its block with what it prints.
func (s *script) block(text string) string {
	head, _, _ := strings.Cut(text, "\n----")
	var lines []string
	for line := range strings.SplitSeq(head, "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return text
	}
	words := strings.Fields(lines[0])
	command := commands[words[0]]
	if command == nil {
		s.t.Fatalf("no command %q", words[0])
	}
	s.args, s.input = words[1:], strings.Join(lines[1:], "\n")
	s.out.Reset()
	command(s)
	return head + "\n----\n" + cmp.Or(strings.TrimRight(s.out.String(), "\n"), "nothing new")
}

func (s *script) arg(i int) string {
	if i >= len(s.args) {
		s.t.Fatalf("argument %d is missing after %v", i+1, s.args)
	}
	return s.args[i]
}

func (s *script) number(text string) int {
	_, after, found := strings.Cut(text, "=")
	if !found {
		after = text
	}
	n, err := strconv.Atoi(after)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// turn is a turn of the agent's loop, printed.
func (s *script) turn() {
	s.w.turn()
	s.print(&s.w.plan)
}

func (s *script) print(p *Plan) {
	for _, step := range p.Steps {
		fmt.Fprintf(&s.out, "do    %s%s\n", step, s.terms(step))
	}
	for _, key := range p.Cancel {
		fmt.Fprintf(&s.out, "cancel %s\n", s.w.memory.InFlight[key])
	}
	for _, wait := range p.Waits {
		fmt.Fprintf(&s.out, "wait  %s: %s%s\n", wait.For, wait.Why, s.until(wait.Until))
	}
	for _, target := range p.Probes {
		fmt.Fprintf(&s.out, "probe %s%s\n", target.ContainerID,
			map[bool]string{true: " (readiness only)"}[target.ReadinessOnly])
	}
	if !p.Wake.IsZero() {
		fmt.Fprintf(&s.out, "wake%s\n", s.until(p.Wake))
	}
	if p.Released {
		s.out.WriteString("released\n")
	}
	if p.Done {
		s.out.WriteString("done\n")
	}
	s.printStatus(p)
}

func (s *script) until(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (in %s)", at.Sub(s.w.now))
}

// terms are what a step carries that its String leaves out.
func (s *script) terms(step podstate.Step) string {
	switch step := step.(type) {
	case podstate.StopContainer:
		return fmt.Sprintf(", within %s%s", step.Deadline.Sub(s.w.now),
			map[bool]string{true: ", then replace it"}[step.Replaces()])
	case podstate.CreateContainer:
		if step.Backoff > 0 {
			return fmt.Sprintf(", back-off after it %s", step.Backoff)
		}
	}
	return ""
}

// sameReason is a Ready that says just what ContainersReady says.
var sameReason = regexp.MustCompile(`(!Ready\([^)]*\)) !ContainersReady\([^)]*\)`)

// shorter are the conditions' messages as the scripts have them; the tables of conditions have them in full.
var shorter = strings.NewReplacer("ContainersNotReady: containers with unready status: ", "unready: ",
	"ContainersNotInitialized: containers with incomplete status: ", "incomplete: ")

// printStatus prints the lines of the status that are new.
func (s *script) printStatus(p *Plan) {
	lines := strings.Split(statusText(p.Status), "\n")
	lines[1] = shorter.Replace(sameReason.ReplaceAllString(lines[1], "$1 !ContainersReady(as Ready)"))
	for i, line := range lines {
		if i >= len(s.shown) || line != s.shown[i] {
			fmt.Fprintf(&s.out, "  | %s\n", line)
		}
	}
	s.shown = lines
}

func (s *script) pod() {
	pod := podOf(s.t, s.input)
	s.w = newWorld(podstate.Desired{Pod: pod, Hashes: hashesOf(pod)}, epoch)
	s.shown = nil
	s.turn()
}

func (s *script) up() {
	s.pod()
	s.run()
	s.out.Reset()
	s.shown = nil
	s.print(&s.w.plan)
}

// hashesOf replaces the hashes of agent/spec: in these tests only images change.
func hashesOf(pod *corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			all[c.Name] = cmp.Or(c.Image, "image")
		}
	}
	return all
}

func (s *script) spec() {
	pod := podOf(s.t, s.input)
	pod.Status = s.w.desired.Pod.Status
	s.w.desired.Pod, s.w.desired.Hashes = pod, hashesOf(pod)
	s.turn()
}

func (s *script) status() {
	s.w.desired.Pod.Status = corev1.PodStatus{}
	fromYAML(s.t, s.input, &s.w.desired.Pod.Status)
	s.w.memory = podstate.NewMemory()
	s.turn()
}

func (s *script) node() {
	for line := range strings.SplitSeq(s.input, "\n") {
		f := strings.Fields(line)
		switch f[0] {
		case "sandbox":
			s.w.createSandbox(podstate.CreateSandbox{Attempt: uint32(s.number(f[1]))}, &call{})
			s.w.dir, s.w.cgroup = true, true
		case "volume":
			s.w.volumes[f[1]] = true
		case "container":
			box := s.w.sandboxes[len(s.w.sandboxes)-1]
			s.w.createContainer(podstate.CreateContainer{
				Name:      f[1],
				Attempt:   uint32(s.number(f[2])),
				SandboxID: box.ID,
			}, &call{hash: s.w.desired.Hashes[f[1]]})
			id := s.w.newest(f[1])
			s.w.startContainer(podstate.StartContainer{ID: id})
			if code, exited := strings.CutPrefix(f[3], "exit="); exited {
				s.w.exit(id, int32(s.number(code)))
			}
		default:
			s.t.Fatalf("unknown line %q", line)
		}
	}
	s.turn()
}

func (s *script) begin() {
	for _, step := range s.w.plan.Steps {
		s.w.begin(step)
	}
	s.turn()
}

func (s *script) run() {
	for range 100 {
		for _, step := range s.w.plan.Steps {
			s.w.begin(step)
		}
		if len(s.w.calls) == 0 {
			return
		}
		for _, c := range slices.Clone(s.w.calls) {
			s.end(c, s.w.effect(c))
		}
		s.turn()
	}
	s.t.Fatal("no end of steps")
}

// named are the calls whose step reads as the arguments begin. Steps of the plan that read so begin.
func (s *script) named() []*call {
	want := strings.Join(s.args, " ")
	for _, step := range s.w.plan.Steps {
		if strings.HasPrefix(step.String(), want) &&
			(s.w.memory.InFlight[step.Key()] == nil || podstate.Overtakes(step, s.w.memory.InFlight[step.Key()])) {
			s.w.begin(step)
		}
	}
	var found []*call
	for _, c := range s.w.calls {
		if strings.HasPrefix(c.step.String(), want) && !c.ghost {
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		s.t.Fatalf("no step %q among %v", want, s.w.plan.Steps)
	}
	return found
}

func (s *script) end(c *call, problem *podstate.Problem) {
	c.problem = problem
	s.w.finish(c, time.Time{})
}

func (s *script) ok() {
	for _, c := range s.named() {
		c.problem = s.w.effect(c)
		s.w.finish(c, s.refreshAt())
	}
	s.turn()
}

// refreshAt returns when a volume is to be refreshed, which the input says: refresh in <duration>.
func (s *script) refreshAt() time.Time {
	text, found := strings.CutPrefix(s.input, "refresh in ")
	if !found {
		return time.Time{}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.w.now.Add(d)
}

func (s *script) fail() {
	reason, message, _ := strings.Cut(s.input, ": ")
	if message == "" {
		reason, message = "", reason
	}
	for _, c := range s.named() {
		if start, ok := c.step.(podstate.StartContainer); ok {
			s.w.failToStart(start.ID)
		}
		s.end(c, &podstate.Problem{Reason: reason, Message: message, Cancelled: message == "cancelled"})
	}
	s.turn()
}

func (s *script) lost() {
	for _, c := range s.named() {
		s.w.effect(c)
		s.end(c, &podstate.Problem{Message: "no answer in time"})
	}
	s.turn()
}

func (s *script) late() {
	for _, c := range s.named() {
		s.end(c, &podstate.Problem{Message: "no answer in time"})
		s.w.calls = append(s.w.calls, &call{step: c.step, hash: c.hash, ghost: true})
	}
	s.turn()
}

func (s *script) arrive() {
	for _, c := range slices.Clone(s.w.calls) {
		if c.ghost {
			s.w.effect(c)
			s.w.finish(c, time.Time{})
		}
	}
	s.turn()
}

func (s *script) exit() {
	id := s.w.newest(s.arg(0))
	if id == "" {
		s.t.Fatalf("no container %s", s.arg(0))
	}
	code := int32(s.number(s.arg(1)))
	if len(s.args) > 2 {
		s.w.exitWith(id, code, s.arg(2))
	} else {
		s.w.exit(id, code)
	}
	s.turn()
}

func (s *script) crio() {
	s.w.removesFailed = true
	s.turn()
}

func (s *script) unfit() {
	what := unfitness(s.arg(0))
	s.args = []string{"create", "sandbox"}
	for _, c := range s.named() {
		c.unfit = what
		s.end(c, s.w.effect(c))
	}
	s.turn()
}

func (s *script) die() {
	s.w.killSandbox(&s.w.sandboxes[len(s.w.sandboxes)-1])
	s.turn()
}

func (s *script) pause() {
	s.w.endPause(s.w.sandboxes[len(s.w.sandboxes)-1].ID)
	s.turn()
}

func (s *script) unknown() { s.found(podstate.ContainerUnknown) }

func (s *script) known() { s.found(podstate.ContainerRunning) }

// found changes the state in which the runtime reports a container.
func (s *script) found(state podstate.ContainerState) {
	s.w.containers[s.w.index(s.w.newest(s.arg(0)))].State = state
	s.turn()
}

func (s *script) forget() {
	s.w.forget(cmp.Or(s.w.newest(s.arg(0)), s.arg(0)))
	s.turn()
}

func (s *script) probe() {
	id := s.w.newest(s.arg(0))
	v := s.w.probed[id]
	for _, word := range s.args[1:] {
		probe, result, _ := strings.Cut(word, "=")
		r := map[string]podstate.ProbeResult{"ok": podstate.ProbeSuccess, "fail": podstate.ProbeFailure}[result]
		*map[string]*podstate.ProbeResult{
			"startup":   &v.Startup,
			"liveness":  &v.Liveness,
			"readiness": &v.Readiness,
		}[probe] = r
	}
	s.w.probed[id] = v
	s.turn()
}

func (s *script) advance() {
	d, err := time.ParseDuration(s.arg(0))
	if err != nil {
		s.t.Fatal(err)
	}
	s.w.now = s.w.now.Add(d)
	s.turn()
}

func (s *script) restart() {
	s.w.killAgent()
	s.turn()
}

func (s *script) api() {
	if s.w.apiBehind = s.arg(0) == "behind"; !s.w.apiBehind {
		s.w.publish()
	}
	s.turn()
}

func (s *script) objects() {
	s.w.memory.Stale()
	s.turn()
}

// asks makes the pod's stop stricter.
func (s *script) asks(cause podstate.StopCause, seconds int, reason, message string) {
	s.w.desired.Stop = s.w.desired.Stop.Stricter(&podstate.Stop{
		Cause:    cause,
		Deadline: s.w.now.Add(time.Duration(seconds) * time.Second),
		Reason:   reason,
		Message:  message,
		New:      reason != "",
	})
	s.turn()
}

func (s *script) delete() {
	now, grace := metav1.NewTime(s.w.now), int64(s.number(s.arg(0)))
	s.w.desired.Pod.DeletionTimestamp, s.w.desired.Pod.DeletionGracePeriodSeconds = &now, &grace
	s.asks(podstate.StopDeleted, int(grace), "", "")
}

func (s *script) gone() { s.asks(podstate.StopOrphaned, s.number(s.arg(0)), "", "") }

func (s *script) evict() {
	s.asks(podstate.StopEvicted, s.number(s.arg(0)), s.arg(1), strings.Join(s.args[2:], " "))
}

func (s *script) reclaim() {
	s.w.desired.Reclaim = true
	s.turn()
}

func (s *script) devices() {
	s.w.desired.DevicesMissing = strings.Join(s.args, " ")
	s.turn()
}

func (s *script) reject() {
	s.w.desired.Rejected = &podstate.Rejection{Reason: s.arg(0), Message: strings.Join(s.args[1:], " ")}
	s.turn()
}
