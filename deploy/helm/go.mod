// What renders deploy/chart, as its users do; see deploy/go.sh. Go adds what it needs.
module penstock.example/helm

go 1.24

require helm.sh/helm/v3 v3.18.6
