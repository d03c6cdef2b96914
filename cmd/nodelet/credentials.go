package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/cri/images/provider"
	"github.com/nodelet/nodelet/kube/objects"
)

// providerTokenSeconds is how long the tokens live that credential providers get: the API server's default.
const providerTokenSeconds = 3600

// credentialProviders sets up the programs that give logins to registries; nil where none are configured.
func (n *nodelet) credentialProviders() (func(context.Context, *corev1.Pod, string) ([]images.Provided, []string), error) {
	i := n.cfg.Images
	if i.ProviderConfig == "" && i.ProviderBinaries == "" {
		return nil, nil
	}
	p, err := provider.New(provider.Options{
		Config: i.ProviderConfig, BinDir: i.ProviderBinaries, Tokens: n.cfg.Gate("KubeletServiceAccountTokenForCredentialProviders"),
		Account: n.serviceAccount,
		Token: func(ctx context.Context, pod *corev1.Pod, audience string) (string, time.Time, error) {
			return n.objectsFor(pod).Token(ctx, pod, audience, providerTokenSeconds)
		},
		Log: n.log,
	})
	if err != nil {
		return nil, err
	}
	return p.Ask, nil
}

func (n *nodelet) serviceAccount(ctx context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	if n.objects == nil {
		return nil, fmt.Errorf("get service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, objects.ErrNoAPI)
	}
	return n.objects.ServiceAccount(ctx, pod)
}
