"""The node agent on Kubernetes: a kubelet plugin for dynamic resource allocation (DRA)."""
