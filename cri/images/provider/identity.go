package provider

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	config "k8s.io/kubelet/config/v1"

	"github.com/nodelet/nodelet/cri/images"
)

// identity is on whose behalf a provider is called; the zero value is the node.
type identity struct {
	// pod has the service account whose token the provider gets; nil for no token.
	pod         *corev1.Pod
	source      images.Source
	annotations map[string]string
	// own: the answer is for this pod alone, because it is valid only as long as the token.
	own bool
	// key is the same for identities that may share an answer.
	key string
}

// identify returns on whose behalf the provider is called. It is not called for a pod without the service account or
// the annotations that it requires.
func (p *provider) identify(ctx context.Context, pod *corev1.Pod) (who identity, wanted bool, err error) {
	t := p.tokens
	if t == nil {
		return identity{}, true, nil
	}
	if pod == nil || pod.Spec.ServiceAccountName == "" {
		return identity{}, !*t.RequireServiceAccount, nil
	}
	account, err := p.account(ctx, pod)
	if err != nil {
		return identity{}, false, err
	}
	annotations, complete := choose(account.Annotations, t)
	if !complete {
		return identity{}, false, nil
	}
	who = identity{pod: pod, annotations: annotations, own: t.CacheType == config.TokenServiceAccountTokenCacheType,
		source: images.Source{UID: account.UID, Namespace: account.Namespace, Name: account.Name, ServiceAccount: true}}
	who.key = fmt.Sprintf("%q %q %q %q", account.Namespace, account.Name, account.UID, annotations) // fmt sorts maps
	if who.own {
		who.key += " " + string(pod.UID)
	}
	return who, true, nil
}

// choose returns the annotations that a provider wants; complete is false if a required one is missing.
func choose(all map[string]string, t *config.ServiceAccountTokenAttributes) (chosen map[string]string, complete bool) {
	chosen = map[string]string{}
	for _, k := range t.RequiredServiceAccountAnnotationKeys {
		v, ok := all[k]
		if !ok {
			return nil, false
		}
		chosen[k] = v
	}
	for _, k := range t.OptionalServiceAccountAnnotationKeys {
		if v, ok := all[k]; ok {
			chosen[k] = v
		}
	}
	return chosen, true
}
