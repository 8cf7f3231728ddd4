package config

import "fmt"

func (k *checker) instances(at string, r *Room) {
	in := r.Instances
	if in.Source == "kubernetes" {
		if in.Selector == "" {
			k.add(at+".selector", "is missing beside source: kubernetes", "name the labels of the pods that the room protects, as app=shop")
		}
		return
	}
	for key, v := range map[string]string{"selector": in.Selector, "namespace": in.Namespace} {
		if v != "" {
			k.add(at+"."+key, fmt.Sprintf("belongs to source: kubernetes, and source is %s", in.Source), "remove it")
		}
	}
	if r.Capacity.PerInstance > 0 && in.Source == "static" && in.Fallback == 0 {
		k.add(at+".fallback", "0 with source: static leaves a limit of 0", "give the number of instances")
	}
}
