package manifest

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// countSet returns the number of non-nil pointer fields of a struct: for API types of which one field must be set.
func countSet(v any) (n int) {
	for _, f := range reflect.ValueOf(v).Fields() {
		if f.Kind() == reflect.Pointer && !f.IsNil() {
			n++
		}
	}
	return n
}

func (c *checker) startAndStop(p *field.Path, ct *corev1.Container) {
	c.probe(p.Child("livenessProbe"), ct.LivenessProbe, true)
	c.probe(p.Child("readinessProbe"), ct.ReadinessProbe, false)
	c.probe(p.Child("startupProbe"), ct.StartupProbe, true)
	if r := ct.ReadinessProbe; r != nil && r.TerminationGracePeriodSeconds != nil {
		c.add(field.Invalid(p.Child("readinessProbe", "terminationGracePeriodSeconds"), *r.TerminationGracePeriodSeconds,
			"must not be set: a readiness probe ends nothing"))
	}
	if ct.Lifecycle != nil {
		c.handler(p.Child("lifecycle", "postStart"), ct.Lifecycle.PostStart)
		c.handler(p.Child("lifecycle", "preStop"), ct.Lifecycle.PreStop)
		if ct.Lifecycle.StopSignal != nil && c.pod.Spec.OS == nil {
			c.add(field.Forbidden(p.Child("lifecycle", "stopSignal"), "needs spec.os.name"))
		}
		if _, err := podutil.StopSignal(ct); err != nil {
			c.add(field.Invalid(p.Child("lifecycle", "stopSignal"), *ct.Lifecycle.StopSignal, "is no signal of Linux"))
		}
	}
}

// probe checks a probe that may be nil. If the first success decides, successThreshold must be 1.
func (c *checker) probe(p *field.Path, pr *corev1.Probe, firstSuccessDecides bool) {
	if pr == nil {
		return
	}
	if countSet(pr.ProbeHandler) != 1 {
		c.add(field.Required(p, "must have one of exec, httpGet, tcpSocket and grpc"))
	}
	c.actions(p, pr.Exec, pr.HTTPGet, pr.TCPSocket)
	if pr.GRPC != nil {
		c.between(p.Child("grpc", "port"), int64(pr.GRPC.Port), 1, 65535)
		if m := pr.GRPC.Mode; m != nil {
			oneOf(c.findings, p.Child("grpc", "mode"), *m, corev1.GRPCProbeModePlaintext, corev1.GRPCProbeModeTLS)
		}
	}
	c.notNegative(p.Child("initialDelaySeconds"), int64(pr.InitialDelaySeconds))
	c.notNegative(p.Child("timeoutSeconds"), int64(pr.TimeoutSeconds))
	c.notNegative(p.Child("periodSeconds"), int64(pr.PeriodSeconds))
	c.notNegative(p.Child("successThreshold"), int64(pr.SuccessThreshold))
	c.notNegative(p.Child("failureThreshold"), int64(pr.FailureThreshold))
	if firstSuccessDecides && pr.SuccessThreshold != 1 {
		c.add(field.Invalid(p.Child("successThreshold"), pr.SuccessThreshold, "must be 1"))
	}
	if g := pr.TerminationGracePeriodSeconds; g != nil && *g <= 0 {
		c.add(field.Invalid(p.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0"))
	}
}

func (c *checker) handler(p *field.Path, h *corev1.LifecycleHandler) {
	if h == nil {
		return
	}
	if countSet(*h) != 1 {
		c.add(field.Required(p, "must have one of exec, httpGet, sleep and tcpSocket"))
	}
	c.actions(p, h.Exec, h.HTTPGet, h.TCPSocket)
	g := c.pod.Spec.TerminationGracePeriodSeconds
	if h.Sleep != nil && g != nil && (h.Sleep.Seconds < 0 || h.Sleep.Seconds > *g) {
		c.add(field.Invalid(p.Child("sleep", "seconds"), h.Sleep.Seconds,
			fmt.Sprintf("must be from 0 to terminationGracePeriodSeconds (%d)", *g)))
	}
}

// actions checks the actions that are not nil.
func (c *checker) actions(
	p *field.Path, exec *corev1.ExecAction, get *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction) {
	if exec != nil && len(exec.Command) == 0 {
		c.add(field.Required(p.Child("exec", "command"), ""))
	}
	if get != nil {
		c.httpGet(p.Child("httpGet"), get)
	}
	if tcp != nil {
		c.port(p.Child("tcpSocket", "port"), tcp.Port)
	}
}

func (f *findings) httpGet(p *field.Path, get *corev1.HTTPGetAction) {
	f.required(p.Child("path"), get.Path)
	f.port(p.Child("port"), get.Port)
	oneOf(f, p.Child("scheme"), get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for i, h := range get.HTTPHeaders {
		f.texts(p.Child("httpHeaders").Index(i).Child("name"), h.Name, validation.IsHTTPHeaderName(h.Name))
	}
	if get.Protocol == nil {
		return
	}
	oneOf(f, p.Child("protocol"), *get.Protocol, corev1.HTTPProtocolHTTP1, corev1.HTTPProtocolHTTP2)
	if *get.Protocol == corev1.HTTPProtocolHTTP2 && (get.Scheme != corev1.URISchemeHTTP || get.Host != "") {
		f.add(field.Invalid(p.Child("protocol"), *get.Protocol, "needs the scheme HTTP and no host"))
	}
}

// port accepts a number, or a valid name of a port. A name that the container does not have fails when the probe runs.
func (f *findings) port(p *field.Path, port intstr.IntOrString) {
	if port.Type == intstr.Int {
		f.between(p, int64(port.IntVal), 1, 65535)
		return
	}
	f.texts(p, port.StrVal, validation.IsValidPortName(port.StrVal))
}

// How many restartPolicyRules the API allows, and how many exit codes in one of them.
const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

func (c *checker) restartRules(p *field.Path, ct *corev1.Container) {
	if ct.RestartPolicy == nil && len(ct.RestartPolicyRules) > 0 {
		c.add(field.Required(p.Child("restartPolicy"), "must be set with restartPolicyRules"))
	}
	if ct.RestartPolicy != nil {
		oneOf(c.findings, p.Child("restartPolicy"), *ct.RestartPolicy, corev1.ContainerRestartPolicyAlways,
			corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever)
	}
	if n := len(ct.RestartPolicyRules); n > maxRestartRules {
		c.add(field.TooMany(p.Child("restartPolicyRules"), n, maxRestartRules))
	}
	for i, r := range ct.RestartPolicyRules {
		rp := p.Child("restartPolicyRules").Index(i)
		oneOf(c.findings, rp.Child("action"), r.Action, corev1.ContainerRestartRuleActionRestart,
			corev1.ContainerRestartRuleActionRestartAllContainers)
		if r.ExitCodes == nil {
			c.add(field.Required(rp.Child("exitCodes"), ""))
			continue
		}
		oneOf(c.findings, rp.Child("exitCodes", "operator"), r.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if n := len(r.ExitCodes.Values); n > maxExitCodes {
			c.add(field.TooMany(rp.Child("exitCodes", "values"), n, maxExitCodes))
		}
	}
}
