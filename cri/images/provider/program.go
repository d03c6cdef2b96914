package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kubelet/config/v1"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	kjson "sigs.k8s.io/json"

	hostprogram "github.com/nodelet/nodelet/host/program"
)

const (
	// runTime is how long a program may take, as with the kubelet.
	runTime = time.Minute
	// maxAnswer bounds what is read of a program's answer, maxComplaint what is kept of its standard error.
	maxAnswer    = 1 << 20
	maxComplaint = 4 << 10
)

// program is the executable of a provider.
type program struct {
	name, path, apiVersion string
	args, env              []string
	limit                  time.Duration
	ran                    func(provider string, took time.Duration, err error)
}

// find finds the program of a provider.
func find(dir string, c config.CredentialProvider) (*program, error) {
	if dir == "" {
		return nil, errors.New("it is not set; set it to the directory with the programs of credential providers")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	path, err := exec.LookPath(filepath.Join(dir, c.Name))
	if err != nil {
		return nil, fmt.Errorf("credential provider %s has no executable program: %w; "+
			"install it or take the provider out of the configuration", c.Name, err)
	}
	p := &program{name: c.Name, path: path, apiVersion: c.APIVersion, args: c.Args, limit: runTime}
	for _, e := range c.Env {
		p.env = append(p.env, e.Name+"="+e.Value)
	}
	return p, nil
}

// run makes one request to the program. Its error has what the program wrote to standard error, and nothing of the
// answer.
func (p *program) run(ctx context.Context,
	request api.CredentialProviderRequest) (*api.CredentialProviderResponse, error) {
	request.TypeMeta = metav1.TypeMeta{APIVersion: p.apiVersion, Kind: "CredentialProviderRequest"}
	question, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	running, cancel := context.WithTimeoutCause(ctx, p.limit, fmt.Errorf("it did not answer within %s and was killed",
		p.limit))
	defer cancel()
	running, kill := context.WithCancelCause(running)
	defer kill(nil)
	tooLong := fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
	stdout := &hostprogram.Output{Limit: maxAnswer, Overflow: func() { kill(tooLong) }}
	stderr := &hostprogram.Output{Limit: maxComplaint}
	cmd := hostprogram.Command(running, p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdin = bytes.NewReader(question)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	began := time.Now()
	err = cmd.Run()
	if cause := context.Cause(running); cause != nil {
		err = cause
	}
	if ctx.Err() == nil { // a run that was given up says nothing about the provider
		p.ran(p.name, time.Since(began), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, complaint(stderr.Bytes(), request.ServiceAccountToken))
	}
	return parse(stdout.Bytes(), p.apiVersion)
}

// complaint quotes a program's standard error without a token.
func complaint(said []byte, token string) string {
	text := strings.TrimSpace(string(said))
	if token != "" {
		text = strings.ReplaceAll(text, token, "(token)")
	}
	if text == "" {
		return ""
	}
	return fmt.Sprintf("; its standard error: %q", text)
}

// parse parses an answer. Errors do not quote it, because it may contain passwords.
func parse(text []byte, apiVersion string) (*api.CredentialProviderResponse, error) {
	answer := &api.CredentialProviderResponse{}
	strict, err := kjson.UnmarshalStrict(text, answer)
	switch {
	case err != nil:
		return nil, errors.New("its answer is not a CredentialProviderResponse in JSON")
	case answer.APIVersion != apiVersion || answer.Kind != "CredentialProviderResponse":
		return nil, fmt.Errorf("its answer is not of kind CredentialProviderResponse and apiVersion %s, as its request was",
			apiVersion)
	case len(strict) > 0:
		return nil, errors.New("its answer has unknown or duplicate fields")
	}
	return answer, nil
}
