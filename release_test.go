package nodelet_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/internal/release"
)

// TestOneKubernetesVersion checks that nodelet, its libraries and its tests follow the same version of Kubernetes. A
// new minor version begins with internal/release. Then this test, the tests of config, "make reference" and
// TestLongMetricNames say what else has changed.
func TestOneKubernetesVersion(t *testing.T) {
	staging := "v0." + strings.TrimPrefix(release.Kubernetes, "v1.")
	for file, want := range map[string]map[string]string{
		"go.mod": {
			"k8s.io/api": staging, "k8s.io/apimachinery": staging, "k8s.io/client-go": staging,
			"k8s.io/component-helpers": staging, "k8s.io/cri-api": staging, "k8s.io/kubelet": staging,
		},
		"test/testbed/modules/kubernetes/go.mod":       {"k8s.io/kubernetes": release.Kubernetes},
		"test/testbed/modules/suite/go.mod":            {"k8s.io/kubernetes": release.Kubernetes},
		"test/testbed/modules/node-suite/go.mod":       {"k8s.io/kubernetes": release.Kubernetes},
		"test/managers/go.mod":                         {"k8s.io/kubernetes": release.Kubernetes},
		"test/testbed/modules/sample-apiserver/go.mod": {"k8s.io/sample-apiserver": staging},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for module, version := range want {
			found := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(text)
			if found == nil || string(found[1]) != version {
				t.Errorf("%s: got %s %q, want %s", file, module, found, version)
			}
		}
	}
}

// TestManagersCanBeBuilt checks that test/managers, which builds nodelet's policies beside the kubelet's, requires no
// older version of a library than nodelet does: Go refuses to build it then. "go mod tidy" there mends it.
func TestManagersCanBeBuilt(t *testing.T) {
	versions := func(file string) map[string]string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, found := range regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`).FindAllSubmatch(text, -1) {
			all[string(found[1])] = string(found[2])
		}
		return all
	}
	own := versions("go.mod")
	if len(own) < 50 {
		t.Fatalf("go.mod: got %d libraries, want 50 or more", len(own))
	}
	for library, has := range versions("test/managers/go.mod") {
		least, shared := own[library]
		if shared && version.MustParseSemantic(has).LessThan(version.MustParseSemantic(least)) {
			t.Errorf("test/managers/go.mod: got %s %s, want %s or later", library, has, least)
		}
	}
}

// workflow is what this test reads of a workflow of GitHub.
type workflow struct {
	Jobs map[string]struct {
		Steps []struct{ Run, Uses string }
	}
}

// pinnedAction is a step of others, by the hash of a commit.
var pinnedAction = regexp.MustCompile(`^[a-z-]+/[a-z-]+@[0-9a-f]{40}$`)

// TestWorkflows checks that the workflows run what guards main and what makes a release, with targets that exist, and
// that they use actions of others by the hash of a commit alone.
func TestWorkflows(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	for _, file := range []string{".github/workflows/ci.yaml", ".github/workflows/release.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var w workflow
		if err := yaml.Unmarshal(text, &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for name, job := range w.Jobs {
			for _, s := range job.Steps {
				commands.WriteString(s.Run + "\n")
				if s.Uses != "" && !pinnedAction.MatchString(s.Uses) {
					t.Errorf("%s, job %s: %q is not pinned to a commit", file, name, s.Uses)
				}
			}
		}
	}
	for _, want := range []string{
		".ci/run\n", "make release\n", "make release-test\n", "make release VERSION=", "make vuln\n",
	} {
		if !strings.Contains(commands.String(), want) {
			t.Errorf("no workflow runs %q", want)
		}
	}
	for _, m := range regexp.MustCompile(`make ([a-z-]+)`).FindAllStringSubmatch(commands.String(), -1) {
		if !strings.Contains(string(makefile), "\n"+m[1]+":") {
			t.Errorf("a workflow runs make %s, which the Makefile does not have", m[1])
		}
	}
}

// TestBotKnowsEachModule checks that the bot looks for new dependencies of each Go module.
func TestBotKnowsEachModule(t *testing.T) {
	text, err := os.ReadFile(".github/dependabot.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var bot struct {
		Updates []struct{ Directories []string }
	}
	if err := yaml.Unmarshal(text, &bot); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Base(file) != "go.mod" {
			return err
		}
		for _, u := range bot.Updates {
			for _, pattern := range u.Directories {
				if ok, err := path.Match(pattern, path.Join("/", filepath.Dir(file))); ok || err != nil {
					return err
				}
			}
		}
		t.Errorf("dependabot.yaml has no directory for %s", file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
